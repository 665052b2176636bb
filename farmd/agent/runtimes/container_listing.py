"""What the engine says of a node's containers: listed by label each half minute, after each event and act.

Events only wake, because engines lose them. While the engine does not answer, or does not describe what it
lists, nobody knows what runs: ``doubt`` says why, and what was known stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from farmd.agent.errors import StartFailed
from farmd.agent.model import LOST, Identity
from farmd.agent.runtimes import container_config
from farmd.agent.runtimes.container_config import NODE
from farmd.agent.runtimes.engine import Engine, EngineRefused, EngineSilent
from farmd.runtime.tasks import until_one_fails
from farmd.runtime.wake import wait
from store.ports import Clock
from store.reality import Exit
from store.times import seconds_of

# What an engine says of one container, in the agent's words. Pure.

LIVE = frozenset({"running", "paused", "restarting", "stopping"})
ENDED = frozenset({"exited", "stopped", "dead", "removing"})


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """One container as the engine described it: the names of its volumes and networks, the lease's label."""

    state: str
    identity: Identity
    sizes: tuple[int, int]
    exit: Exit | None = None
    why: str = ""
    volumes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    lease: str = ""


def described(found: Mapping[str, Any]) -> EngineContainer:
    """What an engine's description says of a container that an agent made.

    Raises:
        KeyError, ValueError: an agent did not make it.
    """
    mounts = found.get("Mounts") or []
    volumes = tuple(str(each.get("Name")) for each in mounts if each.get("Type") == "volume")
    lease = str(found["Config"]["Labels"].get(container_config.LEASE, ""))
    networks = tuple(str(each) for each in (found.get("NetworkSettings") or {}).get("Networks") or {})
    return replace(_described(found), volumes=volumes, networks=networks, lease=lease)


def _described(found: Mapping[str, Any]) -> EngineContainer:
    state, labels = found["State"], found["Config"]["Labels"]
    status = str(state["Status"]).lower()
    identity = container_config.identity(labels, str(found["Id"]), int(state.get("Pid") or 0))
    max_bytes, _, keep = labels["farmd.logs"].partition(" ")
    sizes = int(max_bytes), int(keep)
    if status in LIVE:
        return EngineContainer(status, identity, sizes)
    if str(state.get("StartedAt", "")).startswith("0001") or status == "initialized":
        return EngineContainer(status, identity, sizes)  # made, and never started
    if status not in ENDED:
        why = "the node was restarted while it ran"
        return EngineContainer(
            status, identity, sizes, Exit(seconds_of(state["StartedAt"]), LOST, "lost"), why
        )
    oom = bool(state.get("OOMKilled"))
    end = Exit(seconds_of(state["FinishedAt"]), exit_code(state), "oom" if oom else "")
    limit = found.get("HostConfig", {}).get("Memory") or 0
    why = f"out of memory: its limit is {limit / 2**20:.0f} MiB" if oom else ""
    return EngineContainer(status, identity, sizes, end, why)


def exit_code(state: Mapping[str, Any]) -> int:
    """How a container ended: the exit code, or minus the signal."""
    code = int(state["ExitCode"])
    return 128 - code if 128 < code <= 192 else code


log = structlog.get_logger()

LOOK_SECONDS = 30.0
LOOK_OFTEN_SECONDS = 2.0


class EngineListing:
    """The containers of one node by instance; ``noted`` is called after each look."""

    def __init__(self, engine: Engine, node: str, clock: Clock, noted: Callable[[], None]) -> None:
        self.doubt = "the container engine was not queried yet"
        self.answered = False
        self.apart = False
        self._asked = False
        self.seen: dict[str, EngineContainer] = {}
        self._engine = engine
        self._label = f"{NODE}={node}"
        self._clock = clock
        self._noted = noted
        self._looking = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._again = asyncio.Event()
        self._wake: Callable[[], None] = lambda: None

    async def run(self, wake: Callable[[], None]) -> None:
        """Look again and again, sooner after an event; ``wake`` is called after each change."""
        self._wake = wake
        await until_one_fails([self._follow_events(), self._look_on()])

    async def _look_on(self) -> None:
        while True:
            await wait(self._again, self._clock, LOOK_OFTEN_SECONDS if self.doubt else LOOK_SECONDS)
            self._again.clear()
            await self.look()

    async def _follow_events(self) -> None:
        """Look again after each event; without events the looks go on at their own pace."""
        while True:
            self._asked = False  # another engine may answer now, or with other settings
            try:
                events = self._engine.events(self._label)
                async with contextlib.aclosing(self._engine.stream(events)) as told:
                    async for _ in told:
                        self._again.set()
            except StartFailed as error:
                if not self.doubt:
                    log.info("container.events_lost", reason=error.message)
            self._again.set()
            await self._clock.sleep(LOOK_OFTEN_SECONDS)

    async def look(self) -> None:
        """List the containers; without an answer ``doubt`` says why."""
        async with self._looking:
            before = self.doubt, self.seen
            try:
                self.seen = await self._listed()
                if not self._asked:
                    self.apart, self._asked = await self._engine.apart(), True
                self.doubt, self.answered = "", True
            except StartFailed as error:
                self.doubt = error.message
            self._noted()
            if before != (self.doubt, self.seen):
                if before[0] != self.doubt:
                    log.info("runtime.doubt", runtime="container", reason=self.doubt or "it answers")
                self._wake()

    async def answers(self) -> bool:
        """Whether the engine tells what runs; many who ask at once look once."""
        async with self._asking:
            if not self.doubt:
                await self.look()
        return not self.doubt

    async def looked(self) -> None:
        """Look, and fail where that tells nothing.

        Raises:
            EngineSilent: nobody knows what runs.
        """
        await self.look()
        if self.doubt:
            raise EngineSilent(self.doubt)

    async def _listed(self) -> dict[str, EngineContainer]:
        """All containers of the node, each described.

        Raises:
            StartFailed: there is no answer, or one that is not whole.
        """
        seen: dict[str, EngineContainer] = {}
        refused: dict[str, EngineRefused] = {}
        for summary in await self._engine.listed(self._label):
            try:
                found = await self._described(summary)
            except EngineRefused as error:
                refused[summary["Id"]] = error
            else:
                seen |= {found.identity.instance: found} if found is not None else {}
        if refused:
            # Gone since, or not described for a reason of the engine's own: then it may well run.
            still = {summary["Id"] for summary in await self._engine.listed(self._label)}
            for handle in refused.keys() & still:
                what = f"the engine lists {handle[:12]} but does not describe it"
                raise EngineSilent(f"{what}: {refused[handle].message}")
        return seen

    async def _described(self, summary: Mapping[str, Any]) -> EngineContainer | None:
        """One container of the list; asked about only if it changed. None: no agent made it.

        Raises:
            EngineSilent: the answer about a container of ours cannot be read.
        """
        handle, state = summary["Id"], summary["State"].lower()
        known = next((each for each in self.seen.values() if each.identity.handle == handle), None)
        if known is not None and known.state == state:
            return known
        found = await self._engine.inspected(handle)
        try:
            return described(found)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            if known is not None:
                raise EngineSilent(f"the engine's answer about {handle[:12]} cannot be read") from error
            log.warning("container.not_ours", container=handle[:12], reason=repr(error))
            return None

    def live(self) -> Iterable[Identity]:
        """The containers that have not ended."""
        return (seen.identity for seen in self.seen.values() if seen.state in LIVE)

    def lives(self, handle: str) -> bool:
        """Whether this very container has not ended."""
        return any(identity.handle == handle for identity in self.live())
