"""Wakes a loop by a call, or by time on the injected clock. All loops pause in this way.

``Wake`` is an event for one waiter. ``asyncio.Event`` would cost 700 bytes for each of ten thousand idle
workers; ``Wake`` costs almost nothing until a task waits, and then one future and no coroutine.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Protocol

from store.ports import Clock


class Waitable(Protocol):
    """``Wake`` or ``asyncio.Event``."""

    def is_set(self) -> bool:
        """Whether it was set since it was cleared."""

    def wait(self) -> Awaitable[object]:
        """Return once it is set."""


class Wake:
    """A flag that one task waits for; several calls before the task runs count as one."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter, now or as soon as it waits."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Forget earlier calls."""
        self._set = False

    def is_set(self) -> bool:
        """Whether it was set since it was cleared."""
        return self._set

    def wait(self) -> Awaitable[None]:
        """Return once it is set."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self._set:
            self._waiter.set_result(None)
        return self._waiter


def earliest(*times: float | None) -> float | None:
    """The smallest of these numbers of seconds; None if all are None."""
    return min((seconds for seconds in times if seconds is not None), default=None)


async def wait(wake: Waitable, clock: Clock, seconds: float | None) -> bool:
    """Return when ``wake`` is set (True) or after so many seconds (False); None or infinity: no limit."""
    if wake.is_set():
        return True
    if seconds is None or math.isinf(seconds):
        await wake.wait()
        return True
    return await _within(wake, clock, seconds)


async def _within(wake: Waitable, clock: Clock, seconds: float) -> bool:
    waiters = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    return wake.is_set()
