"""The parts of a farm that the workers of all kinds use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from alerting.alert import Alerter
from farmd.cache.caches import Caches, ManifestCache
from farmd.cache.fleet import FleetIndex
from farmd.failsafe.guard import FailsafeGuard, RemovalBudget
from farmd.farm.members import Features
from farmd.farm.plan import FarmSettings
from farmd.observe.progress import Progress
from farmd.pods.placement import Placement
from scheduler.protocol import Scheduler
from store.audit import AuditLogStore
from store.consul.client import ConsulClient
from store.keys import Keys
from store.ports import Clock, Ids, Recorder, Rng

# Limits how many workers begin at once, so that thousands of wake-ups do not stop the event loop.
#
# asyncio runs all ready tasks before it looks at a socket again. Ten thousand workers that start, or wake
# from one change, would take two seconds in which no freed lock is seen, no claim is made and no session is
# renewed. So only a few begin in each pass of the loop, in the order in which they asked; a single worker
# never waits. A turn is not held: a worker that waits for the store delays no other.

# A cycle that changes nothing computes for about 0.2 ms.
AT_ONCE = 32


class Limiter:
    """Lets ``at_once`` callers go on in each pass of the running loop."""

    __slots__ = ("_at_once", "_given", "_waiting")

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._given = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when it is the caller's turn, which is at once while few others wait."""
        loop = asyncio.get_running_loop()
        if self._given < self._at_once:
            if self._given == 0:
                loop.call_soon(self._next_pass, loop)
            self._given += 1
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        await future

    def _next_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self._given = 0
        while self._waiting and self._given < self._at_once:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._given += 1
        if self._given:
            loop.call_soon(self._next_pass, loop)


# When all statuses change at once, as after an outage of many agents, ten thousand writes would wait for
# sixteen connections until they time out, and their memory would stay with the process.
STATUSES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Context:
    """A farm's parts.

    ``guards`` are those of the guarded kinds, by name; ``budget`` makes the removal budget of a kind.
    ``sections`` holds the settings of kinds that have their own, by the kind's name. ``features`` are those
    that this farm knows now; a kind may add and withdraw its own. ``status_writes`` limits
    how many statuses are written at a time, so that writes of pods need not wait for them. ``cpu`` is the
    clock of CPU time by which costly turns are followed by rests; by default no turn costs any.
    """

    settings: FarmSettings
    cluster: str
    client: ConsulClient
    keys: Keys
    caches: Caches
    fleet: FleetIndex
    scheduler: Scheduler
    manifests: ManifestCache
    audit: AuditLogStore
    placement: Placement
    guards: Mapping[str, FailsafeGuard]
    budget: Callable[[], RemovalBudget]
    alerter: Alerter
    clock: Clock
    rng: Rng
    ids: Ids
    recorder: Recorder
    progress: Progress
    sections: Mapping[str, Any] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    limiter: Limiter = field(default_factory=Limiter)
    cpu: Callable[[], float] = lambda: 0.0
    status_writes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STATUSES_AT_ONCE))

    @property
    def farm(self) -> str:
        return self.settings.name

    @property
    def actor(self) -> str:
        """The name of this farm in audit records."""
        return f"farm/{self.settings.name}"

    async def read_nodes(self) -> None:
        """Read again the small trees that plans of pods depend on: nodes, room, states of workers (R15)."""
        caches = self.caches
        for tree in (caches.nodes, caches.agents, caches.reserved, caches.work):
            await tree.barrier()

    async def read_pods(self, owners: Collection[str]) -> None:
        """Read these owners' pods again, then the intents at their places (R15).

        The copies of the two trees are read seldom, and not at the same time: an intent that is older than
        its pod would look like another owner's.
        """
        await self.caches.pods.barrier([self.keys.pods(owner) for owner in owners])
        places = [place for owner in owners for place in self.fleet.pods(owner)]
        await self.placement.reread_intents(places)
