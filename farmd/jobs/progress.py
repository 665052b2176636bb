"""Changes of a job's run: what must be durable before anything rests on it.

What must never break: attempts, slots that are done and counted retries never shrink, and an end is taken in
once: the attempt of a slot, or its place among those that are done, tells a later reader of the same end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from farmd.jobs.facts import (
    Count,
    JobSpec,
    JobSummary,
    Member,
    ReplicaType,
    Slot,
    Snapshot,
    State,
    attempt_of,
)
from farmd.jobs.members import Board, counted_in_place, exists, is_closed, over, retries
from store.indexes import Indexes
from store.jobs import Run, SlotRun
from store.words import count_of

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


# What people are told of a job: its state, and how many slots of each type are where.


def standing(shot: Snapshot, progress: RunProgress, board: Board, why: str = "") -> JobSummary:
    """A job for people; ``why``: why not all members have a place."""
    run = progress.run
    counts = {kind.name: _count(progress, board, kind) for kind in shot.job.types}
    state = _state(shot, progress, board)
    if run.outcome:
        return JobSummary(state, run.reason, run.message, counts, run.restarts)
    waits = why or stuck(board) or (_retried(run, board) if state == "restarting" else "")
    return JobSummary(state, run.reason, waits, counts, retries(shot.job, run, board))


def template_changed(types: Sequence[str]) -> str:
    """Why types get no members whose template was changed under those that run."""
    names = ", ".join(types)
    return f"the template of {names} was changed while members run: change it back, or stop the job first"


def stuck(board: Board) -> str:
    """Why members do not run, or nobody can tell whether they do: the first one's reason."""
    found = [each for each in board.live.values() if each.message and each.phase in ("starting", "unknown")]
    if not found:
        return ""
    more = f", and {count_of(len(found) - 1, 'more member')}" if len(found) > 1 else ""
    return f"{found[0].slot}: {found[0].message}{more}"


def _retried(run: Run, board: Board) -> str:
    """The slots that are tried again, and have no member yet that runs."""
    waiting = _waiting(run, board)
    if not waiting:
        return "all members are tried again"
    more = f" and {count_of(len(waiting) - 1, 'more slot')}" if len(waiting) > 1 else ""
    first = waiting[0]
    cause = run.slots[first.type][str(first.index)].cause
    after = f" after it ended ({cause})" if cause else ""
    return f"{first}{more} tried again{after}, attempt {attempt_of(run, first)}"


def _state(shot: Snapshot, progress: RunProgress, board: Board) -> State:
    run = progress.run
    if shot.job.deleting:
        return "deleting"
    if run.outcome:
        return run.outcome
    if shot.job.suspend:
        return "suspended"
    if _restarting(run, board):
        return "restarting"
    active = any(member.phase in ("running", "succeeded") for member in board.live.values())
    return "running" if active or any(progress.closed.values()) else "waiting"


def _restarting(run: Run, board: Board) -> bool:
    """Whether a slot that was tried before has no member yet that runs; after a restart of the job: whether
    none has.
    """
    if _waiting(run, board):
        return True
    return run.attempt > 0 and not any(_works(run, board, slot) for slot in board.live)


def _waiting(run: Run, board: Board) -> list[Slot]:
    """The slots that were tried before, and have no member yet that runs."""
    tried = (Slot(name, int(index)) for name, slots in run.slots.items() for index in slots)
    return sorted(slot for slot in tried if not _works(run, board, slot))


def _works(run: Run, board: Board, slot: Slot) -> bool:
    member = board.live.get(slot)
    current = member is not None and member.attempt >= attempt_of(run, slot)
    return current and member is not None and member.phase in ("running", "succeeded")


def _count(progress: RunProgress, board: Board, kind: ReplicaType) -> Count:
    live = [member for slot, member in board.live.items() if slot.type == kind.name]
    given_up = len(progress.ended("given_up", kind.name))
    return Count(
        starting=sum(member.phase in ("held", "starting") for member in live),
        running=sum(member.phase == "running" for member in live),
        succeeded=len(progress.ended("done", kind.name)),
        failed=sum(_failed(progress, member) for member in live) + given_up,
    )


def _failed(progress: RunProgress, member: Member) -> bool:
    slot = member.slot
    return member.phase == "failed" and slot.index not in progress.closed.get(slot.type, ())
