"""What people are told of a job: its state, and how many slots of each type are where."""

from __future__ import annotations

from farmd.jobs.members import Board
from farmd.jobs.model import Count, Member, ReplicaType, Slot, Snapshot, Standing, State, attempt_of
from farmd.jobs.progress import Progress
from store.jobs import Run


def standing(shot: Snapshot, progress: Progress, board: Board, why: str = "") -> Standing:
    """A job for people; ``why``: why not all members have a place."""
    run = progress.run
    counts = {kind.name: _count(progress, board, kind) for kind in shot.job.types}
    state = _state(shot, progress, board)
    waits = f"{run.restarts} restarts" if state == "restarting" else ""
    return Standing(state, run.reason, run.message or why or waits, counts, run.restarts)


def _state(shot: Snapshot, progress: Progress, board: Board) -> State:
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
    tried = [Slot(name, int(index)) for name, slots in run.slots.items() for index in slots]
    if any(not _works(run, board, slot) for slot in tried):
        return True
    return run.attempt > 0 and not any(_works(run, board, slot) for slot in board.live)


def _works(run: Run, board: Board, slot: Slot) -> bool:
    member = board.live.get(slot)
    current = member is not None and member.attempt >= attempt_of(run, slot)
    return current and member is not None and member.phase in ("running", "succeeded")


def _count(progress: Progress, board: Board, kind: ReplicaType) -> Count:
    live = [member for slot, member in board.live.items() if slot.type == kind.name]
    given_up = len(progress.ended("given_up", kind.name))
    return Count(
        starting=sum(member.phase in ("held", "starting") for member in live),
        running=sum(member.phase == "running" for member in live),
        succeeded=len(progress.ended("done", kind.name)),
        failed=sum(_failed(progress, member) for member in live) + given_up,
    )


def _failed(progress: Progress, member: Member) -> bool:
    slot = member.slot
    return member.phase == "failed" and slot.index not in progress.closed.get(slot.type, ())
