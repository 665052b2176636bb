"""Whether a job is over, and why: success policy, deadline, failed slots, limit of retries.

Success comes first: what was asked for is there, whatever else went wrong. What must never break: the result
depends on slots, and on no order of members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from farmd.jobs.members import Board, fate, retries
from farmd.jobs.model import JobSpec, Member, ReplicaType, Slot, Snapshot
from farmd.jobs.progress import RunProgress
from store.indexes import Indexes
from store.jobs import MASTERS, SERVERS
from store.words import count_of


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended; ``reason`` is a word, ``message`` one line for people."""

    outcome: Literal["succeeded", "failed"]
    reason: str = ""
    message: str = ""


def verdict(shot: Snapshot, progress: RunProgress, board: Board) -> JobEnd | None:
    """The end of a job that is neither finished nor suspended; None: it goes on."""
    job = shot.job
    if job.invalid:
        return JobEnd("failed", "FailedValidation", job.invalid)
    if succeeded(job, progress):
        return JobEnd("succeeded")
    if (left := remaining(shot, progress)) is not None and left <= 0:
        return JobEnd("failed", "DeadlineExceeded", f"active for {_seconds(job.active_deadline)}")
    if job.success.operator == "all" and (
        lost := board.first(lambda member: fate(job, member) == "fail" and not spared(job, member.slot))
    ):
        return JobEnd("failed", "MemberFailed", f"{lost.slot} {told_end(lost)}")
    if job.success.operator == "any" and _hopeless(job, progress):
        return JobEnd("failed", "MemberFailed", "no slot is left that could complete")
    counted = retries(job, progress.run, board)
    if over_limit(job, counted):
        told = f"{count_of(counted, 'restart')}, limit {job.backoff_limit}"
        return JobEnd("failed", "BackoffLimitExceeded", told)
    if progress.too_large:
        told = f"{count_of(progress.tried, 'slot')} of it would be tried again at a time"
        return JobEnd("failed", "TooManyRetries", told)
    return None


def succeeded(job: JobSpec, progress: RunProgress) -> bool:
    """Whether the slots that count ended well: all of them, or one, as the job says."""
    wanted = [(kind, _counting(job, kind)) for kind in judged(job)]
    if job.success.operator == "any" and any(indexes for _, indexes in wanted):
        return any(progress.ended("done", kind.name).count(indexes) for kind, indexes in wanted)
    return all(progress.ended("done", kind.name).count(indexes) == len(indexes) for kind, indexes in wanted)


def judged(job: JobSpec) -> list[ReplicaType]:
    """The types whose slots decide about success: those that the job names; else, of those that have slots,
    its master; else all but parameter servers.
    """
    if job.success.types:
        return [kind for kind in job.types if kind.name in job.success.types]
    masters = [kind for kind in job.types if kind.name.lower() in MASTERS and kind.replicas]
    workers = [kind for kind in job.types if kind.name.lower() not in SERVERS and kind.replicas]
    return masters or workers or list(job.types)


def _counting(job: JobSpec, kind: ReplicaType) -> range:
    """The indexes of a type that decide."""
    if job.success_index is None:
        return range(kind.replicas)
    return range(job.success_index, min(job.success_index + 1, kind.replicas))


def _hopeless(job: JobSpec, progress: RunProgress) -> bool:
    """Whether every slot that could bring success was given up."""
    closed, wanted = progress.closed, [(kind.name, _counting(job, kind)) for kind in judged(job)]
    return all(closed.get(name, Indexes()).count(indexes) == len(indexes) for name, indexes in wanted)


def spared(job: JobSpec, slot: Slot) -> bool:
    """Whether the job goes on without this slot once its member failed for good."""
    if job.success.operator == "any":
        return True
    counts = any(kind.name == slot.type and slot.index in _counting(job, kind) for kind in judged(job))
    return slot.type in job.spared and not counts


def over_limit(job: JobSpec, retries: int) -> bool:
    """Whether so many retries are too many: a limit of 3 ends at the third, 0 and 1 at the first; one that
    allows so many ends at the fourth.
    """
    if job.backoff_limit is None:
        return False
    if job.allows_limit:
        return retries > job.backoff_limit
    return retries > 0 if job.backoff_limit == 0 else retries >= job.backoff_limit


def remaining(shot: Snapshot, progress: RunProgress) -> float | None:
    """Seconds until the deadline; None: there is none, or the job has not started."""
    started = progress.started
    if shot.job.active_deadline is None or not started:
        return None
    return started + shot.job.active_deadline - shot.now


def told_end(member: Member) -> str:
    """How a member ended, for people: one line, whatever it said itself."""
    how = f"ended with exit code {member.exit}" if member.exit is not None else "ended without an exit code"
    cause = f" ({member.cause})" if member.cause else ""
    said = " ".join(member.message.split())
    return f"{how}{cause}{f': {said}' if said else ''}"


def _seconds(number: float | None) -> str:
    return f"{number:g} s"
