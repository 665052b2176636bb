"""Changes of a job's run: what must be durable before anything rests on it.

What must never break: attempts, slots that are done and counted retries never shrink, and an end is taken in
once: the attempt of a slot, or its place among those that are done, tells a later reader of the same end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from farmd.jobs.members import counted_in_place, exists, is_closed, over
from farmd.jobs.model import JobSpec, Member, Slot, attempt_of
from store.indexes import Indexes
from store.jobs import Run, SlotRun

FIRST_RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 360.0
# A transaction holds a run of 384 KB; the rest of these is for the pods that change along with it.
_MAX_BYTES = 320 * 1024
_SLOT_BYTES = 40


class RunProgress:
    """A run that takes in ends of members; ``closed`` are the slots that get no member any more, by type."""

    def __init__(self, job: JobSpec, run: Run) -> None:
        self.job = job
        self.closed = over(run)
        self._run = run
        self._ended: dict[str, dict[str, Indexes]] = {"done": {}, "given_up": {}}

    @property
    def run(self) -> Run:
        """The run as it is now: equal to the former one if nothing was taken in."""
        for field, ended in self._ended.items():
            before: dict[str, str] = getattr(self._run, field)
            if ended:
                texts = {name: str(indexes) for name, indexes in ended.items()}
                self._set(**{field: {**before, **texts}})
                ended.clear()
        return self._run

    @property
    def started(self) -> float:
        """When the job began, or went on; 0: it has not."""
        return self._run.started

    @property
    def tried(self) -> int:
        """How many slots are tried again."""
        return sum(map(len, self._run.slots.values()))

    def tried_again(self, name: str) -> list[int]:
        """The indexes of a type that are tried again."""
        return sorted(map(int, self._run.slots.get(name, {})))

    @property
    def too_large(self) -> bool:
        """Whether the run is too large to be written much longer, because too many slots are tried again."""
        run = self.run
        gaps = sum(len(text) for text in (*run.done.values(), *run.given_up.values()))
        return gaps + _SLOT_BYTES * self.tried > _MAX_BYTES

    def ended(self, field: Literal["done", "given_up"], name: str) -> Indexes:
        """The indexes of a type that ended well, or were given up."""
        before: dict[str, str] = getattr(self._run, field)
        return self._ended[field].get(name) or Indexes(before.get(name, ""))

    def take_attempts(self, members: Iterable[Member]) -> None:
        """Believe members about their attempts: after a restore of the store the run may be behind them."""
        for member in members:
            slot = member.slot
            ahead = member.attempt > 0 and member.attempt > attempt_of(self._run, slot)
            if ahead and exists(self.job, slot) and not is_closed(self.closed, slot):
                self._try(slot, member.attempt, 0.0)

    def take_left(self, members: Iterable[Member]) -> None:
        """Take in the good ends of members that were removed before their agents told of them."""
        for member in members:
            slot = member.slot
            well = member.leaving and member.phase == "succeeded"
            current = well and member.attempt >= attempt_of(self._run, slot)
            if current and exists(self.job, slot) and not is_closed(self.closed, slot):
                self.done(member)

    def done(self, member: Member) -> None:
        """Its slot ended well."""
        self._close(member, "done")

    def give_up(self, member: Member) -> None:
        """Its slot failed, and the job goes on without it."""
        self._close(member, "given_up")

    def retry(self, member: Member, now: float, *, counted: bool) -> None:
        """Its slot gets another attempt."""
        self._count(member, counted)
        self._try(member.slot, attempt_of(self._run, member.slot) + 1, now, member.cause)

    def restart_job(self, failed: Iterable[Member], now: float, *, counted: bool) -> None:
        """All slots that are not over get another attempt; any number of failures counts once."""
        for member in failed:
            self._count(member, False)
        tried = [each.attempt for slots in self._run.slots.values() for each in slots.values()]
        attempt = max([self._run.attempt, *tried]) + 1
        restarts = self._run.restarts + counted
        self._set(attempt=attempt, restarts=restarts, slots={}, failed_at=now)

    def begin(self, now: float) -> None:
        """The job starts, or goes on after it was suspended; a gang has its places."""
        if not self._run.started:
            self._set(started=now)
        if self._run.gave_back:
            self._set(gave_back=0, not_before=0.0)

    def suspend(self) -> None:
        """The time until it goes on does not count."""
        if self._run.started:
            self._set(started=0.0, stopped=True)

    def finish(
        self,
        outcome: Literal["succeeded", "failed"],
        now: float,
        reason: str = "",
        message: str = "",
        *,
        restarts: int,
    ) -> None:
        """The job is over, for ever, after so many ``restarts`` that count; attempts that make the run too
        large to be written are dropped.
        """
        if self.too_large:
            self._set(slots={})
        self._set(outcome=outcome, finished=now, reason=reason, message=message, restarts=restarts)

    def due(self, slot: Slot) -> float:
        """When the slot may get a member (seconds since the epoch): each retry waits twice as long."""
        tried = self._run.slots.get(slot.type, {}).get(str(slot.index))
        own = 0.0 if tried is None else _due(tried.failed_at, tried.attempt - self._run.attempt)
        return max(own, _due(self._run.failed_at, self._run.attempt))

    def _count(self, member: Member, counted: bool) -> None:
        restarts = counted_in_place(self.job, member) + counted
        if restarts:
            self._set(restarts=self._run.restarts + restarts)

    def _close(self, member: Member, field: Literal["done", "given_up"]) -> None:
        slot = member.slot
        self._count(member, False)
        self.closed.setdefault(slot.type, Indexes()).add(slot.index)
        ended = self._ended[field][slot.type] = self.ended(field, slot.type)
        ended.add(slot.index)
        if str(slot.index) in self._run.slots.get(slot.type, {}):
            slots = {name: dict(tried) for name, tried in self._run.slots.items()}
            del slots[slot.type][str(slot.index)]
            self._set(slots={name: tried for name, tried in slots.items() if tried})

    def _try(self, slot: Slot, attempt: int, failed_at: float, cause: str = "") -> None:
        slots = {name: dict(tried) for name, tried in self._run.slots.items()}
        slots.setdefault(slot.type, {})[str(slot.index)] = SlotRun(attempt, failed_at, cause)
        self._set(slots=slots)

    def _set(self, **changes: object) -> None:
        self._run = msgspec.structs.replace(self._run, **changes)


def _due(failed_at: float, attempt: int) -> float:
    if not failed_at:
        return 0.0
    doubled: float = FIRST_RETRY_SECONDS * 2 ** min(max(attempt, 1) - 1, 6)
    return failed_at + min(LONGEST_RETRY_SECONDS, doubled)
