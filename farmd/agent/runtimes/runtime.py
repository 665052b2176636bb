"""The port to what runs workloads: operating-system processes, containers, systemd units.

Questions (``find``, ``lives``, ``end``) are answered at once from what the runtime saw last; acts are
awaited. A runtime that cannot tell what runs says so in ``doubt``: then its pods are left as they are,
because a workload that is only not seen must not be started a second time (R26).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from farmd.agent.disk import Disk, DiskSilent
from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.rendering import Rendered, Renderer
from farmd.agent.secrets import NOTHING, Opened, SecretConfig, Secrets
from store import features
from store.access import Exec
from store.manifests import Manifest
from store.reality import Exit

if TYPE_CHECKING:
    from farmd.agent.artifacts.cache import Artifacts

# What the node allows to workloads with a view of their own on it: ``agent.allow``.


def as_features(allow: Sequence[str]) -> list[str]:
    """What the node's presence says of it (R11)."""
    return [f"allow.{each}" for each in allow]


def identity(path: str) -> tuple[int, int]:
    """The device and the number of what a path leads to that was judged a moment ago, and so has no links.

    Raises:
        StartFailed: it has one now. OSError: it does not exist.
    """
    at = _opened(path)
    try:
        found = os.fstat(at)
        return found.st_dev, found.st_ino
    finally:
        os.close(at)


def make_folders(path: str) -> None:
    """Make the missing folders of a path that was judged a moment ago, and so has no links.

    Raises:
        StartFailed: it has one now, or cannot be made.
    """
    try:
        os.close(_opened(path, make=True))
    except OSError as error:
        why = error.strerror or error
        raise StartFailed(f"mounts: {path} cannot be made: {why}", field="mounts") from error


def _opened(path: str, *, make: bool = False) -> int:
    """A descriptor of a path that was reached by no link; the caller closes it."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, path.split("/")):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise StartFailed(f"mounts: {path} was replaced by a link", field="mounts")
    except BaseException:
        os.close(at)
        raise
    return at


def refuse_others(manifest: Manifest, allow: Sequence[str], *, kept: bool = False) -> None:
    """Refuse what ``allow`` does not list; a link is judged by where it leads.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    resolved(manifest, allow, kept=kept)


def resolved(manifest: Manifest, allow: Sequence[str], *, kept: bool = False) -> Manifest:
    """The manifest with binds of what their paths lead to now, which is what was judged.

    A workload may put a link in place of a folder that it can write to, so this is asked right before each
    start, and no path that is not resolved is passed on. ``kept`` is that of ``Launch``.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    mounts = [
        msgspec.structs.replace(mount, source=os.path.realpath(mount.source))
        if mount.type == "bind"
        else mount
        for mount in manifest.mounts
    ]
    real = msgspec.structs.replace(manifest, mounts=mounts)
    needs = [
        need for need in (*features.needed(manifest), *features.needed(real)) if need.startswith("allow.")
    ]
    lacking = [each.removeprefix("allow.") for each in features.lacking(needs, as_features(allow))]
    # The rules of users decide as whom it runs.
    ignored = features.YOUNGER if kept else {features.ROOT}
    if what := ", ".join(each for each in dict.fromkeys(lacking) if each not in ignored):
        raise StartFailed(f"agent.allow: this node does not allow {what}", field="agent.allow")
    return real


class Busy(StartFailed):
    """A workload of the instance is still there: the agent must adopt it instead of a new start."""

    code = "instance_busy"


class Silent(StartFailed):
    """The runtime did not answer, so nobody knows what it did."""

    code = "runtime_silent"


class Unwanted(StartFailed):
    """What comes before a start was given up, because another version is wanted now, or none."""

    code = "start_unwanted"


class InitFailed(StartFailed):
    """A command before the workload failed for good: that is the end of the start, with an ``exit_code``."""

    code = "init_failed"


def _tell_nobody(at: int, attempt: int) -> None:
    """What comes before a start that nobody asks about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start: ``start`` is its id, ``started`` its time in seconds since the epoch.

    ``restart`` is the counter that it acts on (R28), ``vars`` are its intent's variables, ``peers`` is the
    document that names its peers, empty without one (R29). ``kept``: it starts again as it started under an
    earlier version of the agent, which knew no rules of users. ``secrets`` are what this start was given of
    its manifest's sealed ones, ``rendered`` the files that the agent renders and those of a process. A
    runtime whose ``start`` runs the commands of ``init`` calls ``tell`` before each try.
    """

    instance: str
    sha: str
    manifest: Manifest
    ports: Mapping[str, int]
    start: str
    started: float
    restart: int = 0
    vars: Mapping[str, str] = field(default_factory=dict)
    peers: bytes = b""
    kept: bool = False
    secrets: Opened = field(default=NOTHING, repr=False)
    rendered: Rendered = field(default_factory=Rendered, repr=False)
    wanted: Callable[[], bool] = field(default=lambda: True, repr=False)
    tell: Callable[[int, int], None] = field(default=_tell_nobody, repr=False)

    def require_wanted(self) -> None:
        """Give up what comes before the start where that is not wanted any more.

        Raises:
            Unwanted: so it is.
        """
        if not self.wanted():
            raise Unwanted("another version is wanted now, or none")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a start ended; ``why`` is one line for people, empty if the exit says it all.

    ``cut_off``: it was ended because its lease was over, so the end is no failure of its own (R27).
    """

    exit: Exit
    why: str = ""
    cut_off: bool = False


class Execution(Protocol):
    """A command of a person in a pod, whichever runtime the pod has."""

    async def write(self, data: bytes) -> None:
        """Pass on input, and wait until the command has room for it; nothing where it reads no more."""

    async def close_input(self) -> None:
        """End the input."""

    async def pump(self, send: Callable[[int, bytes], Awaitable[None]]) -> None:
        """Send all output of the streams 1 and 2, as fast as ``send`` takes it, until both end."""

    async def resize(self, rows: int, columns: int) -> None:
        """Tell the command's terminal its size."""

    async def signal(self, name: str) -> None:
        """Send the command's group a signal, such as ``INT``."""

    async def wait(self) -> int:
        """The exit code, or minus the signal, once the command has ended with all that it started."""

    async def end(self) -> None:
        """End the command with all that it started."""


class Runtime(Protocol):
    """One way to run workloads on this node."""

    @property
    def name(self) -> str:
        """The name in manifests and records, such as ``process``."""

    @property
    def features(self) -> Sequence[str]:
        """What the node's presence says of this runtime, such as ``runtime.process`` (R11)."""

    @property
    def doubt(self) -> str:
        """Why it cannot tell now what runs; empty if it can."""

    async def look(self) -> None:
        """Learn what runs; without an answer ``doubt`` says why. Called before anything is started."""

    async def run(self, wake: Callable[[], None]) -> None:
        """Keep learning what runs, and call ``wake`` at each change; never returns."""

    async def answers(self) -> bool:
        """Whether it can tell what runs, asked anew."""

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse a manifest that cannot run on this node, before a running workload is stopped for it.

        ``kept`` is that of ``Launch``.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        """Get ready what a start needs, while the former workload still serves; ``tell`` people what it does.

        Raises:
            StartFailed: with the reason for people.
        """

    async def start(self, launch: Launch) -> Identity:
        """Start a prepared workload.

        Raises:
            Busy: a workload of the instance is still there.
            Unwanted, InitFailed: it ended before the workload began.
            StartFailed: with the reason for people.
        """

    def find(self, instance: str) -> Identity | None:
        """The instance's live workload, if there is one."""

    def old_user(self, identity: Identity, manifest: Manifest) -> str:
        """The user of a program that an earlier version started and that this version would start as
        another; empty: the same.
        """

    def strays(self) -> Iterable[Identity]:
        """Workloads whose records may be lost; where the runtime keeps ends, also those that ended."""

    def lives(self, identity: Identity) -> bool:
        """Whether the workload has not ended yet."""

    async def signal(self, identity: Identity, number: int) -> None:
        """Send a signal to the workload; nothing happens if it is gone.

        Raises:
            StartFailed: it could not be sent.
        """

    def watch(self, identity: Identity, gone: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``gone`` in the running loop when the workload ends; returns a function that cancels that.

        None: the caller must ask ``lives`` often.
        """

    def end(self, instance: str, start: str, identity: Identity | None) -> Ended | None:
        """How a start ended that does not live any more, and clear up after it; None: it never began.

        ``identity`` is what was known of it while it lived.
        """

    async def remove(self, instance: str) -> None:
        """Remove what is left of an instance that does not run.

        Raises:
            Busy: a workload of the instance is still there.
        """

    async def tidy(self, needed: Sequence[Manifest], healthy: Sequence[Manifest]) -> None:
        """Remove what this runtime got for pods that are gone for long; called once a minute.

        ``needed`` are the manifests of all pods of the node, ``healthy`` those of pods that pass their check.

        Raises:
            StartFailed: what is under it did not answer.
        """

    async def check(self, identity: Identity, manifest: Manifest, command: Sequence[str]) -> int:
        """Run a health check's command beside the workload; its exit code. Cancelling it ends the command.

        Raises:
            Silent: nobody knows whether it ran.
            StartFailed: it did not run.
        """

    async def execute(
        self, identity: Identity, manifest: Manifest, wanted: Exec, given: Mapping[str, str]
    ) -> Execution:
        """Begin a person's command in the pod: as its user, with its environment and the secret variables of
        its start, ``given``, in its working folder, its limits and what it sees.

        Raises:
            StartFailed: it cannot run.
        """

    async def network(self, identity: Identity) -> int | None:
        """A descriptor of the workload's own network namespace, of this very start; None: it has the node's.

        Raises:
            StartFailed: it does not run, or the agent does not see it.
        """

    async def close(self) -> None:
        """Let go of everything; workloads are left as they are (R27)."""


# The runtimes of one agent: which one a workload belongs to, and whether it can be asked now.


class Runtimes:
    """The runtimes of one agent, by name."""

    def __init__(
        self,
        *runtimes: Runtime,
        artifacts: Artifacts | None = None,
        secrets: Secrets | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        self._by_name = {runtime.name: runtime for runtime in runtimes}
        self.secrets = secrets or Secrets(SecretConfig())
        self.renderer = renderer
        self._artifacts = artifacts
        self._elsewhere = Disk()

    def __iter__(self) -> Iterator[Runtime]:
        return iter(self._by_name.values())

    def of(self, name: str) -> Runtime:
        """The runtime of that name.

        Raises:
            StartFailed: this agent does not have it.
        """
        if name not in self._by_name:
            known = ", ".join(self._by_name)
            raise StartFailed(f"runtime: found {name!r}, expected one that this agent has ({known})")
        return self._by_name[name]

    def doubt(self, name: str) -> str:
        """Why a runtime cannot tell now what runs; empty if it can."""
        return self.of(name).doubt if name in self._by_name else f"this agent has no runtime {name!r}"

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse a manifest that cannot run on this node; ``kept`` is that of ``Launch``.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        judge = partial(self.of(manifest.runtime).preflight, manifest, kept=kept)
        if self._artifacts is not None:
            self._artifacts.rules.preflight(manifest)
        self.secrets.preflight(manifest)
        shown = manifest.runtime == "systemd" and manifest.artifacts
        if not (manifest.mounts or manifest.files or manifest.secrets or shown):
            judge()
            return
        try:
            # It follows paths to wherever they lead, such as a file server that is gone.
            self._elsewhere.call(judge)
        except DiskSilent as error:
            raise StartFailed(f"mounts: {error.strerror}", field="mounts") from error

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        """Get ready what a start needs: artifacts, and what the runtime itself adds; as ``Runtime.prepare``.

        Raises:
            StartFailed: with the reason for people.
        """
        runtime = self.of(manifest.runtime)
        if self._artifacts is not None:
            await self._artifacts.get(manifest, tell, kept=kept)
        if self.renderer is not None:
            await self.renderer.prepare(instance, manifest)
        await runtime.prepare(instance, manifest, tell, kept=kept)

    async def tidy_artifacts(self, needed: Sequence[Manifest], healthy: Sequence[Manifest]) -> None:
        """Remove artifacts that no pod has needed for long; the arguments are those of ``Runtime.tidy``."""
        if self._artifacts is not None:
            await self._artifacts.tidy(needed, healthy)

    def doubts(self) -> dict[str, str]:
        """The runtimes that cannot tell now what runs, with the reasons."""
        return {runtime.name: runtime.doubt for runtime in self if runtime.doubt}

    def features(self) -> list[str]:
        """What the node's presence says of them (R11)."""
        found = [feature for runtime in self for feature in runtime.features]
        found += self._artifacts.rules.features() if self._artifacts is not None else []
        found += self.secrets.features()
        found += [] if self.renderer is None else [features.TEMPLATES, features.PROCESS_FILES]
        return list(dict.fromkeys(found))
