"""Limits how many workers begin at once, so that thousands of wake-ups do not stop the event loop.

asyncio runs all ready tasks before it looks at a socket again. Ten thousand workers that start, or wake from
one change, would take two seconds in which no freed lock is seen, no claim is made and no session is renewed.
So only a few begin in each pass of the loop, in the order in which they asked; a single worker never waits. A
turn is not held: a worker that waits for the store delays no other.
"""

from __future__ import annotations

import asyncio
from collections import deque

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
