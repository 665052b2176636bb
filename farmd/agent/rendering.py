"""Renders the templates of manifests in processes of their own, and writes files of pods (R45).

The files of a start lie in a folder of its own. A process finds all files of its manifest there, in the
folder that ``FARMD_FILES`` names; a container or a unit sees each rendered file under its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farmd.agent import environment
from farmd.agent.children import answered
from farmd.agent.endpoints import Endpoints, Items
from farmd.agent.errors import StartFailed
from farmd.agent.state import StateDirectory
from farmd.agent.users import Account
from store import variables
from store.containers import File
from store.manifests import Manifest

CHILD = Path(__file__).with_name("render.py")
RENDER_SECONDS = 20.0
MOST_ROUNDS = 20
MOST_CHILDREN = 4
"""At once, because one service's change may concern all pods of a node."""
_GIVEN = variables.MEMBER | variables.GANG
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class _Answer(msgspec.Struct):
    text: str = ""
    error: str = ""
    unknown: str = ""
    used: list[str] = []


@dataclass(frozen=True, slots=True)
class Rendered:
    """The files of one start, each with its number in the manifest and its content."""

    files: Sequence[tuple[int, File, bytes]] = ()
    folder: Path = field(default_factory=Path)

    def lay_out(self, manifest: Manifest, user: Account | None) -> list[tuple[str, str]]:
        """Write the files: where each is, and where a unit or a container sees it.

        ``user``: the user of the workload; None: any user, in a container.

        Raises:
            StartFailed: one cannot be written.
        """
        if not self.files:
            return []
        process, binds = manifest.runtime == "process", []
        try:
            # Nobody else on the node reaches the files of a container, whose user is not one of the node's.
            self.folder.parent.mkdir(exist_ok=True, mode=0o711)
            self.folder.mkdir(mode=0o700 if user is None else 0o711)
            for number, file, content in self.files:
                path = path_of(self.folder, number, file, manifest)
                owner = (user.uid, user.gid) if process and user is not None else (file.uid, file.gid)
                write(path, content, owner, file.mode, fresh=True)
                binds.append((str(path), file.path))
        except OSError as error:
            raise StartFailed(f"files: {self.folder}: {error.strerror or error}", field="files") from error
        return [] if process else binds


def path_of(folder: Path, number: int, file: File, manifest: Manifest) -> Path:
    """Where a file lies."""
    return folder / (file.path if manifest.runtime == "process" else str(number))


def holds(path: Path, content: bytes) -> bool:
    """Whether a file has this content; one that a workload made huge is not read.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(content) + 1) == content


def write(path: Path, content: bytes, owner: tuple[int, int], mode: int, *, fresh: bool) -> None:
    """Write a file; ``fresh``: as another file in its place, which a bind of the former one does not show.

    Raises:
        OSError: it cannot be written.
    """
    if not fresh:
        path.chmod(mode | 0o200)  # an agent that is not root may not write to its own file without this
        try:
            with path.open("r+b", buffering=0) as file:
                file.write(content)
                file.truncate(len(content))
        finally:
            path.chmod(mode)
        return
    part = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as new:
        new.write(content)
        if owner != (os.geteuid(), os.getegid()):
            os.fchown(new.fileno(), *owner)
        os.fchmod(new.fileno(), mode)
    part.rename(path)


class Renderer:
    """Renders the files of one node's pods."""

    def __init__(
        self, node: str, state: StateDirectory, endpoints: Endpoints, environ: Mapping[str, str]
    ) -> None:
        self._node, self._state, self.endpoints = node, state, endpoints
        self._environ = {name: environ[name] for name in _VARIABLES if name in environ}
        self._room = asyncio.Semaphore(MOST_CHILDREN)

    def folder(self, instance: str, start: str) -> Path:
        """Where the files of a start lie."""
        return self._state.rendered(instance) / start

    @staticmethod
    def own(manifest: Manifest, folder: Path) -> dict[str, str]:
        """The variable by which a process finds its files."""
        return {variables.FILES: str(folder)} if manifest.runtime == "process" and manifest.files else {}

    async def prepare(self, instance: str, manifest: Manifest) -> None:
        """Render all templates once before a former workload is stopped, without ports.

        Raises:
            StartFailed: one cannot be rendered.
        """
        if any(file.template for file in manifest.files):
            given = dict.fromkeys(_GIVEN, "0")
            await self.all(instance, "", manifest, dict.fromkeys(manifest.ports, 0), given)

    async def all(
        self,
        instance: str,
        start: str,
        manifest: Manifest,
        ports: Mapping[str, int],
        given: Mapping[str, str],
    ) -> tuple[Rendered, frozenset[str]]:
        """The files of a start, and the services that their templates ask for, which are followed then.

        Raises:
            StartFailed: naming the file; why it cannot be rendered.
        """
        folder, used = self.folder(instance, start), set[str]()
        # The same at a start and later: what else a start has is made with it.
        own = {name: value for name, value in given.items() if name in _GIVEN} | self.own(manifest, folder)
        env = environment.with_own(manifest, self._node, instance, ports, own)
        found = []
        for number, file in enumerate(manifest.files):
            if file.template:
                text, asked = await self._rendered(instance, file, env, used)
                used |= asked
                found.append((number, file, text.encode()))
            elif manifest.runtime == "process":
                found.append((number, file, file.body))
        return Rendered(found, folder), frozenset(used)

    async def _rendered(
        self, instance: str, file: File, env: Mapping[str, str], used: set[str]
    ) -> tuple[str, set[str]]:
        """The text of one template; the services that it asks for are followed as it asks."""
        asked = set[str]()
        for _ in range(MOST_ROUNDS):
            endpoints = await self.endpoints.of(asked)
            async with self._room:
                answer = await self._child(file.template, env, endpoints)
            asked |= set(answer.used)
            if answer.error:
                raise StartFailed(f"files: {file.path}: template: {answer.error}", field="files")
            if not answer.unknown:
                return answer.text, asked
            self.endpoints.want(instance, self.endpoints.wanted(instance) | used | asked)
        raise StartFailed(f"files: {file.path}: template: it asks for too many services", field="files")

    async def _child(
        self, text: str, env: Mapping[str, str], endpoints: Mapping[str, Items | None]
    ) -> _Answer:
        told = json.dumps({"text": text, "env": dict(env), "endpoints": dict(endpoints)})
        try:
            async with asyncio.timeout(RENDER_SECONDS):
                code, said = await answered(CHILD, environ=self._environ, told=told.encode())
        except TimeoutError:
            return _Answer(error=f"it was not rendered within {RENDER_SECONDS:g} s")
        if code:
            ended = "it takes more than 1 s of CPU time" if code < 0 else "it ended its process"
            return _Answer(error=ended)
        return msgspec.json.decode(said, type=_Answer)
