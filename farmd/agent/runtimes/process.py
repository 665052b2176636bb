"""The process runtime: starts shims as children of the agent, and finds those whose records are lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import structlog

from farmd.agent.cgroups import Cgroups
from farmd.agent.lease import Leases
from farmd.agent.model import Identity, Record
from farmd.agent.runtimes import shims as runtimes_shims
from farmd.agent.runtimes.attended import Attending
from farmd.agent.runtimes.runtime import Launch
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from store.errors import InputInvalid
from store.features import PROCESS
from store.keys import valid_instance
from store.manifests import Manifest
from store.ports import Clock
from store.presence import boot_id, is_own, start_ticks, user

# Finds workloads whose records were lost while no agent ran, in the kernel's table of processes (R26).
#
# A shim's command line ends with its instance's directory: this is the mark that no disk can lose. Without
# it an agent that finds its state directory empty would start a second process beside the first.

SHIM = "farmd/agent/shim.py"
UNKNOWN = "unknown"
"""The manifest of a process whose records are all lost: no intent names it, so each intent replaces it."""


def running(instances: Path) -> Iterator[Identity]:
    """What can be told of each workload whose shim runs and works in a directory below ``instances``."""
    for pid, name, _ in processes(SHIM, instances):
        with contextlib.suppress(OSError, InputInvalid):
            found = _workload(pid, valid_instance(name))
            if found is not None:
                yield found


def shims(instances: Path) -> set[str]:
    """The instances below ``instances`` whose shims run, also those that have no workload yet."""
    found = set()
    for _, name, _ in processes(SHIM, instances):
        with contextlib.suppress(InputInvalid):
            found.add(valid_instance(name))
    return found


def processes(script: str, instances: Path, more: int = 0) -> Iterator[tuple[int, str, list[str]]]:
    """This agent's processes of a script whose command line ends with an instance's directory and so many
    ``more`` words: the process, the name of that directory, and these words.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
                *before, directory = words[: len(words) - more] or [""]
                named = len(before) > 1 and before[-1].endswith(script)
                if named and Path(directory).parent == instances and is_own(int(entry.name)):
                    yield int(entry.name), Path(directory).name, words[len(words) - more :]


def recorded(identity: Identity, record: Record | None) -> Identity:
    """The identity with the start as the agent's record has it, if the record is not lost."""
    if record is None or not record.start:
        return identity
    return msgspec.structs.replace(
        identity,
        manifest=record.running,
        start=record.start,
        started=record.started,
        ports=record.ports,
        restart=record.restarted,
    )


def _workload(shim: int, instance: str) -> Identity | None:
    ticks = start_ticks(shim)
    children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
    # The workload leads its group; orphans that it left to the shim do not, as a rule, or came later.
    leaders = [pid for pid in map(int, children) if os.getpgid(pid) == pid]
    began = start_ticks(leaders[0]) if leaders else None
    if ticks is None or began is None:
        return None
    return Identity(
        boot=boot_id(),
        shim=shim,
        shim_ticks=ticks,
        pid=leaders[0],
        ticks=began,
        instance=instance,
        manifest=UNKNOWN,
        start=f"lost-{began}",
        started=_seconds(began),
        user=user(leaders[0]),
    )


def _seconds(ticks: int) -> float:
    """Ticks since boot as seconds since the epoch."""
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


log = structlog.get_logger()

NAMING_SECONDS = 5.0
LOOK_SECONDS = 60.0


class Processes(Attending):
    """All processes of one agent."""

    name = "process"
    doubt = ""

    def __init__(
        self, state: StateDirectory, node: str, environ: Mapping[str, str], clock: Clock, users: Users,
        leases: Leases | None = None, cgroup: str = "none",
    ) -> None:  # fmt: skip
        super().__init__(state, node, environ, clock, users, leases)
        self.groups = Cgroups(cgroup, node, state.root)
        self._lost: dict[str, Identity] = {}
        self._lacks = users.lacks_processes()

    @property
    def features(self) -> Sequence[str]:
        """None where this node runs no processes."""
        if self._lacks:
            return []
        return [PROCESS, "runtime.process", *self._users.features(), *self.groups.features()]

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse what this node does not have, and every process where it runs none.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        if not kept:
            self._users.require_processes()
        super().preflight(manifest, kept=kept)
        self.groups.preflight(manifest)

    async def look(self) -> None:
        """Find the processes whose records are lost. A second process of an instance is killed."""
        if not self._lacks:
            await asyncio.to_thread(self.groups.look)
        begun = shims(self._state.instances)
        for instance in self._state.known():
            await self._named(instance, begun)
        found: dict[str, Identity] = {}
        for stray in running(self._state.instances):
            known = self.recorded(stray.instance) or found.get(stray.instance)
            if known is None:
                log.warning("pod.record_lost", instance=stray.instance, pid=stray.pid)
                found[stray.instance] = stray
            elif known.shim != stray.shim:  # the same one also runs what follows its workload
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
            begun = shims(self._state.instances) if instance in begun else begun
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
            known, self._lacks = self.features, lacks
            if not lacks:
                await asyncio.to_thread(self.groups.look)
            if self.features != known:
                wake()
            await self._clock.sleep(LOOK_SECONDS)

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        """Do nothing: a process needs only what is on the node."""

    def _group(self, instance: str, manifest: Manifest) -> dict[str, object]:
        return self.groups.start(instance, manifest)

    def _beside(self, identity: Identity, manifest: Manifest) -> AbstractAsyncContextManager[str]:
        return self.groups.beside(identity.group, manifest)

    async def remove(self, instance: str) -> None:
        """Check that no shim holds the instance, and remove the control groups that killed ones left.

        Raises:
            Busy: a shim still holds it.
        """
        await super().remove(instance)
        await asyncio.to_thread(self.groups.remove, instance)

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
        user = self._users.of(launch.manifest, kept=launch.kept)
        launch.secrets.lay_out(launch.manifest, user)
        self._state.create(launch.instance)
        self._lay_out_rendered(launch, user)
        spec = self.ready(launch)
        directory = self._state.directory(launch.instance)
        with self._memory(launch) as lease:
            words = runtimes_shims.command(directory)
            pid, answer = runtimes_shims.run(words, self._environ, spec, lease)
        if answer != "ok":
            os.waitpid(pid, 0)
        return self.begun(launch, answer)

    def strays(self) -> Iterable[Identity]:
        """The processes whose records were lost when the agent began, as far as they live."""
        return [identity for identity in self._lost.values() if self.lives(identity)]

    async def close(self) -> None:
        """Do nothing: the runtime holds nothing open."""
