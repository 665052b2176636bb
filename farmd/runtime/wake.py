"""Wakes a loop by a call, or by time on the injected clock. All loops pause in this way.

``Wake`` is an event for one waiter, who may rest: only ``set`` ends a rest, ``nudge`` does not.
``asyncio.Event`` would cost 700 bytes for each of ten thousand idle
workers; ``Wake`` costs almost nothing until a task waits, and then one future and no coroutine. Who has ended
its task until then (``park``) costs nothing more.
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


class Sleeper(Protocol):
    """Who has no task until it is woken."""

    def woken(self) -> None:
        """The flag was set; called once for each ``park``."""


class Wake:
    """A flag that one task waits for; several calls before the task runs count as one."""

    __slots__ = ("_resting", "_set", "_sleeper", "_urgent", "_waiter")

    def __init__(self) -> None:
        self._set = self._urgent = self._resting = False
        self._waiter: asyncio.Future[None] | None = None
        self._sleeper: Sleeper | None = None

    def set(self) -> None:
        """Wake the waiter, now or as soon as it waits."""
        self._set = self._urgent = True
        self._call()

    def nudge(self) -> None:
        """Wake the waiter as ``set`` does, but let one that rests go on resting."""
        self._set = True
        if not self._resting:
            self._call()

    def _call(self) -> None:
        if self._sleeper is not None:
            sleeper, self._sleeper = self._sleeper, None
            sleeper.woken()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def park(self, sleeper: Sleeper | None) -> None:
        """Tell ``sleeper`` once the flag is set, now if it is; None: tell nobody any more."""
        self._sleeper, self._waiter = sleeper, None
        if self._set:
            self._call()

    def clear(self) -> None:
        """Forget earlier calls."""
        self._set = self._urgent = False

    def is_set(self) -> bool:
        """Whether it was set since it was cleared."""
        return self._set

    def wait(self) -> Awaitable[None]:
        """Return once it is set."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self._set:
            self._waiter.set_result(None)
        return self._waiter

    async def rest(self, clock: Clock, seconds: float) -> None:
        """Return after so many seconds, or once ``set`` was called."""
        if self._urgent:
            return
        self._resting = True
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await within(self._waiter, clock, seconds)
        finally:
            self._resting = False


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
    await within(wake.wait(), clock, seconds)
    return wake.is_set()


async def within(event: Awaitable[object], clock: Clock, seconds: float) -> None:
    """Return when ``event`` is over, or after so many seconds, in which case it is cancelled."""
    waiters = [asyncio.ensure_future(event), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
