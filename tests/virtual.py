"""Virtual time for tests, and an embedded server that lives by it.

``await clock.advance(30)`` moves through every timer on the way, in order, and lets the tasks that
each one wakes finish what they can before the next: 30 seconds pass in a millisecond.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random

from store.consul.client import ConsulClient
from store.embedded.server import EmbeddedServer, InProcessTransport

# Turns of the loop after which tasks that do not wait for real I/O have come to rest.
_TURNS = 50


class VirtualClock:
    """A ``store.ports.Clock`` that moves only when told; both times start at 1,000,000 s."""

    def __init__(self) -> None:
        self._seconds = 1_000_000.0
        self._set_ahead = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._seconds + self._set_ahead

    def set_ahead(self, seconds: float) -> None:
        """Set the wall clock ahead; no timer ends sooner."""
        self._set_ahead += seconds

    def mono(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self._seconds + seconds, next(self._order), over))
        await over

    async def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        target = self._seconds + seconds
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            self._seconds, _, over = heapq.heappop(self._timers)
            if not over.done():
                over.set_result(None)
                await self.settle()
        self._seconds = target
        await self.settle()

    async def settle(self) -> None:
        """Let every task run until it waits for something else."""
        loop = asyncio.get_running_loop()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if at_rest(loop):
                return


def at_rest(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether nothing is left to run but the caller, and neither a file descriptor nor a thread can change
    that. A loop has one descriptor of its own, which wakes it.
    """
    inside = len(loop._selector.get_map()) == 1 and loop._default_executor is None  # type: ignore[attr-defined]
    return inside and not loop._ready  # type: ignore[attr-defined]


class SeededIds:
    """``store.ports.Ids`` that come out the same in every run."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def new(self) -> str:
        return f"{self._random.getrandbits(64):016x}"


def embedded_server(clock: VirtualClock, **options: object) -> EmbeddedServer:
    """An embedded server on virtual time, the same in every run."""
    return EmbeddedServer(clock, rng=random.Random(1), ids=SeededIds(), **options)  # type: ignore[arg-type]


def embedded_client(clock: VirtualClock) -> ConsulClient:
    """A client of an embedded server of its own, without any I/O."""
    return ConsulClient(InProcessTransport(embedded_server(clock)), clock=clock)
