"""``farmctl pod cp``: files and folders to and from a pod, as a tar stream of the pod's own ``tar``.

The pod is not trusted: what it sends is unpacked by the rules of artifacts into a new folder, which takes its
place only once all of it has come.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from farmd.agent.artifacts import sandbox
from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from farmd.cli.pod import locate
from farmd.cli.pod_exec import ExecSession, entered, note_end
from farmd.runtime.errors import EndedOtherwise
from store.access import Exec
from store.errors import InputInvalid

NOT_RUN = (126, 127)
"""The exit codes of engines and shells for a command that they do not find or cannot run."""
MOST_ENTRIES, MOST_BYTES = 1_000_000, 1 << 50


@command("cp", reasons=True)
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
async def cp(invocation: Invocation, source: str, target: str) -> None:
    """Copy a file or a folder to or from a pod. One of both is NODE/INSTANCE:PATH, the other a path here.

    The pod needs a tar. It sends and writes files as its user. Devices, pipes and links that lead out of
    what is copied are refused. A target that ends in a slash, or is a folder here, gets the source's name.
    """
    (from_pod, from_path), (to_pod, to_path) = _parts(source), _parts(target)
    if bool(from_pod) == bool(to_pod):
        raise InputInvalid("SOURCE, TARGET: expected a pod in one of both, as NODE/INSTANCE:PATH")
    if from_pod:
        await _download(invocation, from_pod, from_path, Path(to_path))
    else:
        await _upload(invocation, Path(from_path), to_pod, to_path)


def _parts(text: str) -> tuple[str, str]:
    """The pod and the path; the pod is empty for a path here, which may begin with ``./`` to be one."""
    pod, colon, path = text.partition(":")
    if not colon or pod.startswith((".", "/")):
        return "", text
    if not path.strip("/.") or "\0" in path:
        raise InputInvalid(f"{text}: found the path {path!r}, expected one of a file or a folder")
    return pod, path


def _split(path: str) -> tuple[str, str]:
    """The folder and the name of a path in a pod."""
    folder, _, name = path.rstrip("/").rpartition("/")
    if name in {"..", "."}:
        raise InputInvalid(f"{path}: found {name!r} at its end, expected a name")
    return folder or ("/" if path.startswith("/") else "."), name


def _place(target: Path, name: str) -> Path:
    """Where a copy goes.

    Raises:
        InputInvalid: something else than a file is there, or nothing can be.
    """
    target = target / name if target.is_dir() else target
    if target.is_symlink() or target.is_dir():
        raise InputInvalid(f"{target}: found something there, expected nothing or a file")
    if not target.parent.is_dir():
        raise InputInvalid(f"{target.parent}: found no such folder")
    return target


async def _download(invocation: Invocation, pod: str, path: str, target: Path) -> None:
    folder, name = _split(path)
    target = _place(target, name)
    with tempfile.TemporaryDirectory(prefix=".farmctl-", dir=target.parent) as made:
        words = ["tar", "-cf", "-", "-C", folder, f"./{name}"]
        await _run(invocation, pod, words, lambda fd: _unpack(fd, made), reads=False)
        found = Path(made) / name
        try:
            found.rename(target)
        except OSError as error:
            raise EndedOtherwise(f"{target}: {error.strerror}: {name!r}, as the pod's tar sent it") from error


def _source(source: Path) -> str:
    """The name of what is copied."""
    if not (source.is_symlink() or source.exists()):
        raise InputInvalid(f"{source}: found no such file or folder")
    return source.resolve().name


async def _upload(invocation: Invocation, source: Path, pod: str, path: str) -> None:
    name = _source(source)
    folder, name = (path, name) if path.endswith("/") else _split(path)

    def pack(fd: int) -> None:
        with os.fdopen(fd, "wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
            archive.add(source, name, filter=_checked(name))

    await _run(invocation, pod, ["tar", "-xof", "-", "-C", folder], pack, reads=True)


def _checked(top: str) -> Callable[[tarfile.TarInfo], tarfile.TarInfo]:
    """Refuses what a pod shall not get; the pod's user owns what it gets."""

    def check(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            raise InputInvalid(f"{entry.name}: found a device or a pipe, expected files, folders and links")
        if entry.issym():
            inside = os.path.normpath(f"{entry.name}/../{entry.linkname}")
            if entry.linkname.startswith("/") or not (inside == top or inside.startswith(f"{top}/")):
                raise InputInvalid(f"{entry.name}: found a link to {entry.linkname}, which leads out")
        entry.mode &= 0o777
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    return check


class _Copy(sandbox.Tree):
    """What comes from a pod, below the current folder: as artifacts, but people may change it."""

    def __init__(self) -> None:
        super().__init__({"entries": MOST_ENTRIES, "most": MOST_BYTES, "reserve": 0})

    def link(self, name: str, target: str) -> None:
        """As for artifacts, but from below the top of what is copied: that moves out of this folder."""
        super().link(name, target)
        if target.split("/").count("..") >= os.path.normpath(name).count("/"):
            raise sandbox.Unfit(f"{name!r} is a link to {target!r}, which leads out of what is copied")

    def finish(self) -> None:
        """Make the links, and let the owner write."""
        for path, kind in self._kinds.items():
            if kind in "df":
                Path(path).chmod(Path(path).stat().st_mode & 0o777 | (0o755 if kind == "d" else 0o200))
        for path, target in self._links.items():
            Path(path).symlink_to(target)


def _unpack(fd: int, into: str) -> None:
    """Unpack what comes into a new folder.

    Raises:
        EndedOtherwise: it has what is refused, or is no archive.
    """
    here = Path.cwd()
    with os.fdopen(fd, "rb") as source:
        os.chdir(into)
        try:
            tree = _Copy()
            with tarfile.open(fileobj=source, mode="r|") as archive:
                sandbox.unpack_tar(tree, archive)
            tree.finish()
            while source.read(1 << 16):
                pass  # padding
        except (sandbox.Unfit, tarfile.TarError, EOFError) as error:
            raise EndedOtherwise(f"refused what the pod sent: {error}") from error
        finally:
            os.chdir(here)


async def _run(
    invocation: Invocation, pod: str, words: list[str], work: Callable[[int], None], *, reads: bool
) -> None:
    """Run ``tar`` in the pod, and what packs or unpacks here at the other end of a pipe, in a thread.

    Raises:
        EndedOtherwise: either of both failed.
    """
    node, instance = await locate(invocation, pod)
    out, into = os.pipe()
    mine, theirs = (into, out) if reads else (out, into)
    working: asyncio.Future[None] | None = None
    try:
        async with entered(invocation, node, instance, "pod.cp", Exec(command=tuple(words))) as found:
            socket, granted = found
            ends: dict[str, Any] = {"source": theirs} if reads else {"output": theirs, "takes_input": False}
            session = ExecSession(socket, **ends)
            working = asyncio.ensure_future(asyncio.to_thread(work, mine))
            try:
                code = await session.run()
            except BrokenPipeError:
                code = -1  # the thread says why
            finally:
                os.close(theirs)
                theirs = -1
            failed = (await asyncio.gather(working, return_exceptions=True))[0]
    finally:
        if theirs >= 0:
            os.close(theirs)
        if working is None:
            os.close(mine)
    if not session.audited:
        await note_end(invocation, granted, code=code, bytes=session.bytes)
    if code in NOT_RUN:  # an engine's words may have come in place of an archive
        raise EndedOtherwise(
            f"{pod}: it has no tar that runs there (exit code {code}), and copying needs one"
        )
    if isinstance(failed, BaseException) and not isinstance(failed, BrokenPipeError):
        raise failed
    if code or failed:
        raise EndedOtherwise(f"{pod}: its tar ended with {code}: what was copied is not complete")
