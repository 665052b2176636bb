"""What people are told of a job: its state, and how many slots of each type are where."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.jobs.members import Board, retries
from farmd.jobs.model import Count, JobSummary, Member, ReplicaType, Slot, Snapshot, State, attempt_of
from farmd.jobs.progress import RunProgress
from store.jobs import Run
from store.words import count_of


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
