"""An event loop whose time is virtual: for synchronous tests of a whole asynchronous world.

Whenever nothing is ready to run, the loop's time jumps to its next timer. So minutes of a fleet pass in
milliseconds, ``asyncio.timeout`` and ``call_later`` included, without a thread, a file descriptor or a real
second; what happens depends on what was scheduled alone, and is the same in every run of a process
(between processes also with the same ``PYTHONHASHSEED``: sets of strings are walked in its order).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingLeft(RuntimeError):
    """Everybody waits and no timer is left: in the real world this would hang for ever."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting for input, lets the time pass for which the loop would have waited."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft("every task waits, and no timer is set")
        self.passed += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``run`` and ``advance`` let the world go on; ``crashes`` are errors that nobody retrieved."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._clock_resolution = 1e-6
        self.crashes: list[str] = []
        self.set_exception_handler(self._crashed)

    def time(self) -> float:
        return self._jump.passed

    def run(self, work: Coroutine[Any, Any, T], within: float = 600.0) -> T:
        """The result of ``work``; everybody else goes on meanwhile."""
        return self.run_until_complete(asyncio.wait_for(work, within))

    def advance(self, seconds: float) -> None:
        """Let that much time pass; at its end nobody is left with anything to do at that moment."""
        self.run_until_complete(asyncio.sleep(seconds))

    def settle(self) -> None:
        """Let everybody do what can be done now; a millisecond passes."""
        self.advance(0.001)

    def end(self) -> None:
        """Cancel and await whatever still runs, and close."""
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        who = context.get("task") or context.get("future") or context.get("asyncgen")
        self.crashes.append(f"{context.get('message')}: {context.get('exception')!r} {who!r}")


class LoopClock:
    """A ``store.ports.Clock`` by a virtual loop; ``start`` is its wall clock at the loop's beginning."""

    def __init__(self, loop: VirtualLoop, start: float = 1_800_000_000.0) -> None:
        self._loop = loop
        self._start = start
        self._leapt = 0.0

    def leap(self, seconds: float) -> None:
        """Set the wall clock forward; the monotonic one goes on as before."""
        self._leapt += seconds

    def now(self) -> float:
        return self._start + self._leapt + self._loop.time()

    def mono(self) -> float:
        return self._start + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
