"""One timer a farm for the times of all its schedules, so that an idle schedule costs none of its own."""

from __future__ import annotations

import heapq

from farmd.runtime.wake import Wake, wait
from store.ports import Clock

LONGEST = 60.0
"""The wall clock may be set while the timer sleeps, and it looks again after so many seconds."""


class Timer:
    """Wakes the worker of each item at its time; the times are those of the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, str]] = []
        self._times: dict[str, tuple[float, Wake]] = {}
        self._changed = Wake()

    def set(self, item: str, at: float | None, wake: Wake) -> None:
        """Wake this worker at a time, in place of an earlier wish; None: at none."""
        if at is None:
            self._times.pop(item, None)
            return
        known = self._times.get(item)
        self._times[item] = at, wake
        if known is None or known[0] != at:
            first = self._heap[0][0] if self._heap else None
            heapq.heappush(self._heap, (at, item))
            if first is None or at < first:
                self._changed.set()

    async def run(self) -> None:
        """Wake workers until cancelled."""
        while True:
            self._changed.clear()
            now = self._clock.now()
            while self._heap and self._heap[0][0] <= now:
                at, item = heapq.heappop(self._heap)
                if (known := self._times.get(item)) is not None and known[0] == at:
                    del self._times[item]
                    known[1].set()
            left = min(LONGEST, self._heap[0][0] - now) if self._heap else None
            await wait(self._changed, self._clock, left)
