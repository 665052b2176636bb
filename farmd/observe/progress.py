"""Which loops still make progress, for the watchdog, ``/health`` and a metric.

A task that hangs raises no error, and a process with a dead watch looks alive. So each long-running
loop registers with the longest pause that is normal for it and beats whenever it makes progress;
systemd's watchdog is fed only while no loop is past its limit. A beat costs one clock reading, so even
the busiest loop may beat. This module only reports stalls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from store.ports import Clock, Recorder

METRIC = "farmd_loop_last_progress_timestamp_seconds"
STALLED = "farmd_loop_stalled"


class Loop:
    """One registered loop. As a context manager it closes itself, also when its task dies."""

    def __init__(self, name: str, limit_seconds: float, clock: Clock, group: set[Loop]) -> None:
        self.name = name
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._group = group
        self.last = clock.mono()
        group.add(self)

    def beat(self) -> None:
        """Record that the loop made progress just now."""
        self.last = self._clock.mono()

    def close(self) -> None:
        """Record that the loop ended normally and will not beat any more."""
        self._group.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Progress:
    """All loops of one process. Several loops may share a name; the slowest one counts for it."""

    def __init__(self, clock: Clock, recorder: Recorder) -> None:
        self._clock = clock
        self._recorder = recorder
        self._groups: dict[str, set[Loop]] = {}

    def loop(self, name: str, limit_seconds: float) -> Loop:
        """Register a loop that counts as stalled after ``limit_seconds`` without a beat."""
        return Loop(name, limit_seconds, self._clock, self._groups.setdefault(name, set()))

    @contextmanager
    def passing(self) -> Iterator[None]:
        """In the end forget the loops that were registered meanwhile, because they belong to what ended."""
        before = {loop for group in self._groups.values() for loop in group}
        try:
            yield
        finally:
            for group in self._groups.values():
                group.intersection_update(before)

    def stalled(self) -> list[str]:
        """Names of loops past their limit, sorted; empty if there are none."""
        now = self._clock.mono()
        return sorted(
            name
            for name, group in self._groups.items()
            if any(now - loop.last > loop.limit_seconds for loop in group)
        )

    def ages(self) -> dict[str, float]:
        """Seconds since the last beat of each name's slowest loop."""
        now = self._clock.mono()
        return {
            name: max(now - loop.last for loop in group)
            for name, group in sorted(self._groups.items())
            if group
        }

    def publish(self) -> None:
        """Write the last beats, as wall-clock times, and the stalls to the metrics; done at each scrape.

        A name of which all loops ended has its progress now: nothing of it is late.
        """
        now, ages, stalled = self._clock.now(), self.ages(), self.stalled()
        for name in self._groups:
            self._recorder.set(METRIC, now - ages.get(name, 0), loop=name)
            self._recorder.set(STALLED, name in stalled, loop=name)
