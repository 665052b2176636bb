"""The process runtime: starts shims as children of the agent, and finds those whose records are lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import structlog

from farmd.agent import strays
from farmd.agent.lease import Leases
from farmd.agent.model import Identity
from farmd.agent.runtimes import shim_start
from farmd.agent.runtimes.port import Launch
from farmd.agent.runtimes.shims import Shims
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from store.features import PROCESS
from store.manifests import Manifest
from store.ports import Clock

log = structlog.get_logger()

NAMING_SECONDS = 5.0
LOOK_SECONDS = 60.0


class Processes(Shims):
    """All processes of one agent."""

    name = "process"
    doubt = ""

    def __init__(
        self, state: StateDirectory, node: str, environ: Mapping[str, str], clock: Clock, users: Users,
        leases: Leases | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state, node, environ, clock, users, leases)
        self._lost: dict[str, Identity] = {}
        self._lacks = users.lacks_processes()

    @property
    def features(self) -> Sequence[str]:
        """None where this node runs no processes."""
        return [] if self._lacks else [PROCESS, "runtime.process", *self._users.features()]

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse what this node does not have, and every process where it runs none.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        if not kept:
            self._users.require_processes()
        super().preflight(manifest, kept=kept)

    async def look(self) -> None:
        """Find the processes whose records are lost. A second process of an instance is killed."""
        begun = strays.shims(self._state.instances)
        for instance in self._state.known():
            await self._named(instance, begun)
        found: dict[str, Identity] = {}
        for stray in strays.running(self._state.instances):
            known = self.recorded(stray.instance) or found.get(stray.instance)
            if known is None:
                log.warning("pod.record_lost", instance=stray.instance, pid=stray.pid)
                found[stray.instance] = stray
            elif known.pid != stray.pid:
                log.error("pod.second_process", instance=stray.instance, pid=stray.pid)
                self.kill_leftovers(stray)
        self._lost = found

    async def _named(self, instance: str, begun: Set[str]) -> None:
        """Wait for a shim that an earlier agent started just before its end to write its identity.

        A shim that has ``begun`` may not even hold its lock yet. One that never writes its identity keeps its
        lock, so no second process starts and its files are not removed.
        """
        give_up = self._clock.mono() + NAMING_SECONDS
        while self.recorded(instance) is None and (instance in begun or self._state.shim_holds(instance)):
            begun = strays.shims(self._state.instances) if instance in begun else begun
            if self._clock.mono() > give_up:
                log.error("pod.nameless_shim", instance=instance)
                return
            await self._clock.sleep(0.02)

    async def run(self, wake: Callable[[], None]) -> None:
        """See now and then whether the node has the user for processes; the kernel tells of every end."""
        told = ""
        while True:
            lacks = await asyncio.to_thread(self._users.lacks_processes)
            if lacks and lacks != told:
                log.warning("agent.no_processes", node=self._node, reason=lacks)
            told = lacks
            if lacks != self._lacks:
                self._lacks = lacks
                wake()
            await self._clock.sleep(LOOK_SECONDS)

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        """Do nothing: a process needs only what is on the node."""

    async def start(self, launch: Launch) -> Identity:
        """Start a workload.

        Raises:
            Busy: the instance already has a shim.
            StartFailed: with the reason.
        """
        return await asyncio.to_thread(self.launch, launch)

    def launch(self, launch: Launch) -> Identity:
        """Start a workload, as ``start``; the call blocks until the workload runs.

        Raises:
            Busy: the instance already has a shim.
            StartFailed: with the reason.
        """
        spec = self.ready(launch)
        directory = self._state.directory(launch.instance)
        with self._memory(launch) as lease:
            words = shim_start.command(directory)
            pid, answer = shim_start.run(words, self._environ, spec, lease)
        if answer != "ok":
            os.waitpid(pid, 0)
        return self.begun(launch, answer)

    def strays(self) -> Iterable[Identity]:
        """The processes whose records were lost when the agent began, as far as they live."""
        return [identity for identity in self._lost.values() if self.lives(identity)]

    async def close(self) -> None:
        """Do nothing: the runtime holds nothing open."""
