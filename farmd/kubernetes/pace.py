"""Limits the requests in flight to one API server, and gives the free places to what matters most.

There is no rate limit: fairness between clients is the server's, which answers 429 to what is too much,
or does not answer in time. Then the limit is halved, once for all requests that were on their way at that
moment, and grows by one a second once the pause that the server asked for is over. Within a priority the
jobs take turns, so that one job of thousands of pods does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from store.ports import Clock

MOST_IN_FLIGHT = 32


class Priority(enum.IntEnum):
    """What a request does; the lower number goes first. A probe, which asks whether the server is there,
    waits for no place.
    """

    PROBE = 0
    READ = 1
    STATUS = 2
    DELETE = 3
    CREATE = 4
    EVENT = 5


class Pace:
    """A counter of requests with queues by priority and key."""

    def __init__(self, clock: Clock, most: int = MOST_IN_FLIGHT) -> None:
        self._clock = clock
        self._most = most
        self._base, self._halved, self._grows = most, -math.inf, -math.inf
        self._in_flight = 0
        self._waiting: dict[Priority, OrderedDict[str, deque[asyncio.Future[None]]]] = {
            priority: OrderedDict() for priority in Priority
        }

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        if self._base == self._most:
            return self._most
        return int(min(self._most, self._base + max(0.0, self._clock.mono() - self._grows)))

    @asynccontextmanager
    async def turn(self, priority: Priority, key: str = "") -> AsyncIterator[None]:
        """One place, as soon as one is free; requests of the same ``key`` keep their order."""
        await self._enter(priority, key)
        try:
            yield
        finally:
            self._in_flight -= 1
            self._admit()

    def congested(self, sent: float, pause: float = 0.0) -> None:
        """A request that was sent then had the answer 429, or none in time: halve the limit, unless it was on
        its way already when the limit was halved last. The server wants to be left alone for ``pause``
        seconds, in which the limit does not grow.
        """
        now = self._clock.mono()
        if sent > self._halved:
            self._base, self._halved = max(1, self.limit // 2), now
        self._grows = max(self._grows, now + pause)

    async def _enter(self, priority: Priority, key: str) -> None:
        free = self._in_flight < self.limit and not any(self._waiting.values())
        if free or priority is Priority.PROBE:
            self._in_flight += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting[priority].setdefault(key, deque()).append(place)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # admitted and cancelled in the same turn of the loop
                self._in_flight -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._in_flight < self.limit and (place := self._next()) is not None:
            self._in_flight += 1
            place.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """The next that waits; its key goes to the end of its priority, but not for a cancelled one."""
        for queues in self._waiting.values():
            while queues:
                key, queue = next(iter(queues.items()))
                place = queue.popleft()
                if queue:
                    queues.move_to_end(key, last=not place.done())
                else:
                    del queues[key]
                if not place.done():
                    return place
        return None
