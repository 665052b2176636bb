"""Decides about a job: slots and members in, a plan out. Pure; it knows no backend.

The branches, in this order: deleting, finished, suspended (all three in ``ending.py``); then the verdict,
the group restart, and the slots. What must never break: the run is written before anything rests on it, so
that a retry is counted once and a job that is over stays over; a gang comes whole or not at all
(``admission.py``); nothing is removed during a freeze that no person asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, filterfalse

from farmd.jobs import services
from farmd.jobs.admission import admitted
from farmd.jobs.ending import deleting, finished, suspended
from farmd.jobs.members import Board, ends, exists, retries, sort
from farmd.jobs.model import ANYWHERE, Member, Need, Plan, ReplicaType, Slot, Snapshot, attempt_of
from farmd.jobs.progress import LONGEST_RETRY_SECONDS, RunProgress
from farmd.jobs.standing import standing, stuck, template_changed
from farmd.jobs.verdict import remaining, spared, verdict
from farmd.runtime.wake import earliest
from farmd.work.model import Ask, Blocked, frozen
from store.indexes import Indexes

# A run names each slot that is tried again, and each gap among those that are done. While so many slots are
# tried again, an array begins no others: its run stays below 64 KB, as every routine write should.
PACED_SLOTS = 1_250


def decide(shot: Snapshot) -> Plan | Ask[Need]:
    """The plan for a job, or the fact that it lacks."""
    if shot.job.deleting:
        return deleting(shot)
    if shot.run.outcome:
        return finished(shot)
    progress = RunProgress(shot.job, shot.run)
    progress.take_attempts(shot.members)
    if shot.traits.tells_removed:
        progress.take_left(shot.members)
    board = sort(shot, progress.run, progress.closed)
    if shot.job.suspend:
        return suspended(shot, progress, board)
    after = _take_ends(shot, progress, board)
    if (found := verdict(shot, progress, board)) is not None:
        counted = retries(shot.job, progress.run, board)
        progress.finish(found.outcome, shot.now, found.reason, found.message, restarts=counted)
    if progress.run.outcome or progress.run.attempt > shot.run.attempt:
        return Plan(run=progress.run, status=standing(shot, progress, board), after=0.0)
    return _fill(shot, progress, board, after)


def _take_ends(shot: Snapshot, progress: RunProgress, board: Board) -> float | None:
    """Take ends of members in, as many as one change of the run may; 0 if there are more.

    A member that may run still is not tried again while a freeze keeps it.
    """
    found = [each for each in ends(shot.job, board) if each[0].over or not shot.frozen]
    whole = shot.job.peers or shot.job.restart_scope == "job"
    failed = []
    for member, end in found[: shot.traits.batch]:
        if end == "done":
            progress.done(member)
        elif end == "restart-job" or (whole and end in ("retry", "replace")):
            failed.append((member, end))
        elif end in ("retry", "replace"):
            progress.retry(member, shot.now, counted=end == "retry")
        elif end == "fail" and spared(shot.job, member.slot):
            progress.give_up(member)
    if failed:
        counted = any(fate != "replace" for _, fate in failed)
        progress.restart_job([member for member, _ in failed], shot.now, counted=counted)
    return 0.0 if len(found) > shot.traits.batch else None


def _fill(shot: Snapshot, progress: RunProgress, board: Board, after: float | None) -> Plan | Ask[Need]:
    """Members for the slots that lack one, and the end of those that have none to fill."""
    missing, due = _missing(shot, progress, board)
    former = shot.run.attempt and any(
        each.attempt < shot.run.attempt and not each.over for each in shot.members
    )
    if former or (shot.job.gang and (due is not None or board.occupied)):
        missing = []  # a restart of the job, and a gang, begin when all of them can
    missing = [slot for slot in missing if slot.type not in shot.altered]
    if missing and shot.room is None and shot.gang in ("none", "ready"):
        return Ask(Need(tuple(missing)))
    room = shot.room or ANYWHERE
    fitting = [slot for slot in missing if room.slots is None or slot in room.slots]
    plan = Plan(
        drop_services=tuple(
            key for key in services.ordered(shot.services) if not services.serves(shot.job, key)
        ),
        create_services=tuple(key for key in services.wanted(shot.job) if key not in shot.services),
        remove=(*board.surplus, *_former(shot, board)),
        create=tuple(fitting),
        after=earliest(after, due, remaining(shot, progress)),
    )
    if shot.job.gang:
        plan = admitted(shot, board, plan, missing)
    return _finished_off(shot, progress, board, plan, room.why if len(fitting) < len(missing) else "")


def _finished_off(shot: Snapshot, progress: RunProgress, board: Board, plan: Plan, why: str) -> Plan:
    """The plan with its run, what a freeze takes from it, and what people are told."""
    running = any(not member.hold for member in board.live.values())
    queued = shot.job.gang and shot.gang in ("absent", "waiting") and not board.live
    if running or plan.release or (shot.traits.cascade and not queued) or (plan.create and not _holds(shot)):
        progress.begin(shot.now)
    run = progress.run if progress.run != shot.run else None
    if run is not None:
        plan = replace(plan, after=0.0)
        if not shot.traits.cascade and len(plan.create) > shot.traits.batch:
            plan = replace(plan, create=() if shot.job.gang else plan.create[: shot.traits.batch])
    blocked = None
    if not (shot.pending or plan.create):
        blocked = _blocked(shot, board, why)
    if shot.altered:
        blocked = Blocked("template_changed", template_changed(shot.altered))
    plan = replace(plan, run=run, status=standing(shot, progress, board, why), blocked=blocked)
    return _frozen(shot, board, plan)


def _blocked(shot: Snapshot, board: Board, why: str) -> Blocked | None:
    """What holds a job of which no member works; ``why``: why slots without a member have no place."""
    if not board.live and why:
        return Blocked("no_room", why)
    if not board.live and shot.job.gang and shot.gang == "waiting":
        return Blocked("not_admitted", "the scheduler of gangs has not admitted it yet")
    if not board.live or any(each.phase != "starting" or not each.message for each in board.live.values()):
        return None
    return Blocked("not_started", stuck(board))


def _frozen(shot: Snapshot, board: Board, plan: Plan) -> Plan:
    """A freeze leaves the removals that a person asked for: of slots that the record has no more (R18)."""
    if not shot.frozen:
        return plan
    asked = tuple(each for each in plan.remove if shot.commanded and not exists(shot.job, each.slot))
    held = len(asked) < len(plan.remove) or any(not member.over for member, _ in ends(shot.job, board))
    return replace(
        plan,
        drop_services=plan.drop_services if shot.commanded else (),
        remove=asked,
        give_back=False,
        blocked=frozen(shot.frozen) if held else plan.blocked,
    )


def _holds(shot: Snapshot) -> bool:
    return shot.job.gang and shot.traits.holds


def _missing(shot: Snapshot, progress: RunProgress, board: Board) -> tuple[list[Slot], float | None]:
    """The slots that may get a member now, and seconds until the next one may after a failure."""
    missing: list[Slot] = []
    waits: list[float] = []
    paced = progress.tried >= PACED_SLOTS
    for kind in shot.job.types:
        closed = progress.closed.get(kind.name, Indexes())
        taken = {
            slot.index for slot in chain(board.live, shot.pending, board.occupied) if slot.type == kind.name
        }
        free = _free(shot, board, kind)
        opened: Iterable[int] = closed.gaps(kind.replicas)
        if paced and kind.parallelism:
            opened = filterfalse(closed.__contains__, progress.tried_again(kind.name))
        for index in opened:
            if free <= 0:
                break
            if index in taken:
                continue
            slot = Slot(kind.name, index)
            if (wait := progress.due(slot) - shot.now) > 0:
                waits.append(min(wait, LONGEST_RETRY_SECONDS))
                continue
            missing.append(slot)
            free -= 1
    return missing, min(waits, default=None)


def _free(shot: Snapshot, board: Board, kind: ReplicaType) -> int:
    """How many more slots of a type may have a member."""
    if not kind.parallelism:
        return kind.replicas
    live = {slot for slot, member in board.live.items() if not member.over}
    busy = live | shot.pending | board.occupied
    return kind.parallelism - sum(slot.type == kind.name for slot in busy)


def _former(shot: Snapshot, board: Board) -> tuple[Member, ...]:
    """Members of earlier attempts, by the run that is durable already."""
    return tuple(each for each in board.outdated if each.attempt < attempt_of(shot.run, each.slot))
