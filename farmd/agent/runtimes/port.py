"""The port to what runs workloads: operating-system processes, containers, systemd units.

Questions (``find``, ``lives``, ``end``) are answered at once from what the runtime saw last; acts are
awaited. A runtime that cannot tell what runs says so in ``doubt``: then its pods are left as they are,
because a workload that is only not seen must not be started a second time (R26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from store.manifests import Manifest
from store.reality import Exit


class Busy(StartFailed):
    """A workload of the instance is still there: the agent must adopt it instead of a new start."""

    code = "instance_busy"


class Silent(StartFailed):
    """The runtime did not answer, so nobody knows what it did."""

    code = "runtime_silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start: ``start`` is its id, ``started`` its time in seconds since the epoch.

    ``restart`` is the counter that it acts on (R28), ``vars`` are its intent's variables, ``peers`` is the
    document that names its peers, empty without one (R29). ``kept``: it starts again as it started under an
    earlier version of the agent, which knew no rules of users.
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


@dataclass(frozen=True, slots=True)
class Ended:
    """How a start ended; ``why`` is one line for people, empty if the exit says it all.

    ``cut_off``: it was ended because its lease was over, so the end is no failure of its own (R27).
    """

    exit: Exit
    why: str = ""
    cut_off: bool = False


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
            StartFailed: with the reason for people.
        """

    def find(self, instance: str) -> Identity | None:
        """The instance's live workload, if there is one."""

    def old_user(self, identity: Identity, manifest: Manifest) -> str:
        """The user as whom an earlier version started it, where this one would not; empty: it would."""

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

    async def close(self) -> None:
        """Let go of everything; workloads are left as they are (R27)."""
