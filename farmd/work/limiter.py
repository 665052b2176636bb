"""Limiter of workers: thousands that wake at the same moment must not stop the loop for everything else.

asyncio runs all tasks that are ready before it looks at a socket again. Ten thousand workers that start, or
that one change wakes, would be two seconds in which no lock is seen to come free, no claim is made and no
session is renewed. So only a few of them begin in each pass of the loop, in the order in which they asked;
one alone never waits. Nobody holds a turn: a worker that waits for the store keeps nobody back.
"""

from __future__ import annotations

import asyncio
from collections import deque

# A cycle that changes nothing computes for about 0.2 ms.
AT_ONCE = 32


class Limiter:
    """Lets so many begin in each pass of the running loop."""

    __slots__ = ("_at_once", "_given", "_waiting")

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._given = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when it is the caller's turn; at once where few others ask."""
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
