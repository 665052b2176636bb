"""The loop of one worker: a cycle, its metrics, a pause until something happens; backoff after errors.

Every kind's worker reads the whole state, decides and executes in its own cycle; what is the same for all
of them is here. The loop ends only by cancellation, or with an error that is not the store's or the
scheduler's: that is a crash, and the supervisor's to deal with (R10).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from farmd.farm.turns import Turns
from farmd.wake import Wake, wait
from scheduler.errors import SchedulerError
from store.errors import AccessDenied, InputInvalid, NotFound, RecordInvalid, SessionSuspended, StoreError
from store.ports import Clock, Recorder, Rng

log = structlog.get_logger()

BACKOFF_START = 0.5
BACKOFF_LIMIT = 60.0
# What no waiting mends: it is said in the status, and tried again all the same.
FOR_PEOPLE = (AccessDenied, SchedulerError, NotFound, RecordInvalid, InputInvalid)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one cycle ended, and when to look again if nothing happens before (seconds; None: never)."""

    result: Literal["done", "after", "backoff", "blocked", "rejected", "frozen"]
    after: float | None = None
    reason: str = ""


class Cycles:
    """The cycles of one item's worker. ``tell`` says in the item's status what only people can mend."""

    __slots__ = ("_backoff", "_clock", "_item", "_kind", "_recorder", "_rng", "_tell", "_turns", "_wake")

    def __init__(
        self,
        kind: str,
        item: str,
        wake: Wake,
        clock: Clock,
        rng: Rng,
        recorder: Recorder,
        tell: Callable[[str], Awaitable[object]],
        turns: Turns,
    ) -> None:
        self._kind = kind
        self._item = item
        self._wake = wake
        self._clock = clock
        self._rng = rng
        self._recorder = recorder
        self._tell = tell
        self._turns = turns
        self._backoff = BACKOFF_START

    async def run(self, cycle: Callable[[], Awaitable[Outcome]]) -> AsyncIterator[Outcome]:
        """Yield the outcome of each cycle, for ever; between them wait for a wake-up or for time."""
        while True:
            await self._turns.turn()
            self._wake.clear()
            started = self._clock.mono()
            outcome = await self._guarded(cycle)
            self._recorder.observe(
                "farmd_cycle_duration_seconds", self._clock.mono() - started, kind=self._kind
            )
            self._recorder.count("farmd_cycles_total", kind=self._kind, result=outcome.result)
            yield outcome
            await wait(self._wake, self._clock, outcome.after)

    def rejected(self, reason: str) -> Outcome:
        """Somebody else was faster: look again after a jittered wait, longer each time in a row."""
        delay = self._rng.uniform(0.0, self._backoff)
        self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
        return Outcome("rejected", delay, reason)

    async def _guarded(self, cycle: Callable[[], Awaitable[Outcome]]) -> Outcome:
        try:
            outcome = await cycle()
        except (StoreError, SchedulerError) as error:
            return await self._failed(error)
        if outcome.result != "rejected":
            self._backoff = BACKOFF_START
        return outcome

    async def _failed(self, error: StoreError | SchedulerError) -> Outcome:
        delay = self._backoff * self._rng.uniform(0.75, 1.25)
        self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
        if isinstance(error, SessionSuspended):
            delay = min(delay, 1.0)
        log.warning(
            "cycle.failed",
            kind=self._kind,
            item=self._item,
            error_code=error.code,
            error=str(error),
            after_s=delay,
        )
        if not isinstance(error, FOR_PEOPLE):
            return Outcome("backoff", delay, error.code)
        await self._tell(f"{error.code}: {error}")
        return Outcome("blocked", delay, error.code)
