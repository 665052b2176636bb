"""Decides about a job: slots and members in, a plan out. Pure; it knows no backend.

The branches, in this order: deleting, finished, suspended (all three in ``ending.py``); then the verdict,
the group restart, and the slots. What must never break: the run is written before anything rests on it, so
that a retry is counted once and a job that is over stays over; a gang comes whole or not at all
(``admission.py``); nothing is removed during a freeze that no person asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, filterfalse
from typing import Literal

from farmd.jobs.facts import (
    ANYWHERE,
    JobSpec,
    Member,
    Need,
    Plan,
    ReplicaType,
    ServiceKey,
    Slot,
    Snapshot,
    attempt_of,
)
from farmd.jobs.members import Board, ends, exists, fate, identity, retries, sort
from farmd.jobs.progress import LONGEST_RETRY_SECONDS, RunProgress, standing, stuck, template_changed
from farmd.runtime.wake import earliest
from farmd.work.model import Ask, Blocked, frozen
from store.indexes import Indexes
from store.jobs import MASTERS, SERVERS
from store.words import count_of

# When the members of a gang may come: all together, or none.
#
# In Kubernetes a scheduler of gangs admits an object that stands for all members. On nodes members are
# placed on hold, and released once every one of them is ready. What must never break: two gangs that wait
# for each other's places give them back; once one member was released, the rest only ever follow.


def admitted(shot: Snapshot, board: Board, plan: Plan, missing: Sequence[Slot]) -> Plan:
    """The plan for a gang; ``missing`` are its slots without a member, ``plan.create`` those with a place."""
    whole = tuple(missing) if len(plan.create) == len(missing) else ()
    if not shot.traits.holds:
        if shot.gang == "absent":
            return replace(plan, gang="create", create=())
        if shot.gang == "outdated":
            return replace(plan, gang="update", create=())
        return replace(plan, create=() if shot.gang == "waiting" else whole)
    held = [member for member in board.live.values() if member.hold]
    released = any(not member.hold for member in board.live.values())
    placed = not missing and not shot.pending and not board.occupied
    if not held or released or placed:
        ready = [member for member in held if member.phase == "held"]
        if held and (released or len(ready) == len(held)):
            return replace(plan, create=whole, release=tuple(ready))
    left = _left(shot, board)
    if held and not released and (left <= 0 or (missing and not whole)):
        return replace(plan, remove=(*plan.remove, *held), create=(), give_back=True)
    return replace(plan, create=whole, after=earliest(plan.after, left if held else None))


def _left(shot: Snapshot, board: Board) -> float:
    """Seconds until the held members of a gang give their places back."""
    oldest = min((member.at for member in board.live.values() if member.hold), default=shot.now)
    return oldest + shot.job.gang_timeout - shot.now


# The services of a job: one that all members share, or one for each slot, whose name is its member's.


def wanted(job: JobSpec) -> list[ServiceKey]:
    """The services that a job should have, in the order of creation."""
    if job.services == "each":
        return [Slot(kind.name, index) for kind in job.types for index in range(kind.replicas)]
    return [None] if job.services == "shared" else []


def serves(job: JobSpec, key: ServiceKey) -> bool:
    """Whether a job should have this service."""
    if key is None:
        return job.services == "shared"
    return job.services == "each" and exists(job, key)


def ordered(services: Iterable[ServiceKey]) -> list[ServiceKey]:
    """Services in an order that is always the same."""
    return sorted(services, key=lambda key: (key is not None, key or Slot("", 0)))


# The branches of a job that gets no more members: deleted, finished, suspended.
#
# What must never break: what a member left behind (the verdict, the slots that are done) is durable before
# the member is removed; a freeze holds every removal that no person asked for (R18).


def deleting(shot: Snapshot) -> Plan:
    """Remove all that is the job's, then its record; in Kubernetes the API server does so by itself."""
    progress = RunProgress(shot.job, shot.run)
    plan = Plan(status=standing(shot, progress, sort(shot, shot.run, progress.closed)))
    return plan if shot.traits.cascade else _held(shot, _taken_down(shot, plan), asked=True)


def finished(shot: Snapshot) -> Plan:
    """Remove what the job's cleaning says, and once its time to live is over the job itself."""
    progress = RunProgress(shot.job, shot.run)
    status = standing(shot, progress, sort(shot, shot.run, progress.closed))
    if (left := _to_live(shot)) is not None and left <= 0:
        plan = Plan(status=status)
        plan = replace(plan, delete_job=True) if shot.traits.cascade else _taken_down(shot, plan)
        return _held(shot, plan, asked=False)
    clean = shot.job.clean
    going = tuple(
        member
        for member in _all(shot)
        if not member.leaving and (clean == "all" or (clean == "running" and not member.over))
    )
    gone = {member.slot for member in going} | ({None} if clean == "all" else set())
    plan = Plan(
        gang="" if shot.gang in ("none", "absent") else "delete",
        drop_services=tuple(key for key in ordered(shot.services) if key in gone),
        remove=going,
        status=status,
        after=left,
    )
    return _held(shot, plan, asked=False)


def suspended(shot: Snapshot, progress: RunProgress, board: Board) -> Plan:
    """Note what ended well; remove all other members. Those that ended stay, for people to read."""
    found = [member for member, fate in ends(shot.job, board) if fate == "done"]
    for member in found[: shot.traits.batch]:
        progress.done(member)
    progress.suspend()
    going = tuple(member for member in _all(shot) if not member.leaving and not member.over)
    plan = Plan(
        run=progress.run if progress.run != shot.run else None,
        gang="" if shot.gang in ("none", "absent") else "delete",
        drop_services=tuple(ordered(shot.services)),
        remove=going,
        status=standing(shot, progress, board),
        after=0.0 if len(found) > shot.traits.batch else None,
    )
    return _held(shot, plan, asked=True)


def _taken_down(shot: Snapshot, plan: Plan) -> Plan:
    """Every member goes; the record only once none is left."""
    left = _all(shot)
    going = tuple(member for member in left if not member.leaving)
    return replace(plan, remove=going, delete_job=not left)


def _held(shot: Snapshot, plan: Plan, *, asked: bool) -> Plan:
    """Without its removals during a freeze, unless a person asked for them after it began."""
    removes = plan.remove or plan.delete_job or plan.gang or plan.drop_services
    if not shot.frozen or not removes or (asked and shot.commanded):
        return plan
    return replace(plan, gang="", drop_services=(), remove=(), delete_job=False, blocked=frozen(shot.frozen))


def _to_live(shot: Snapshot) -> float | None:
    """Seconds until a finished job is deleted; None: never, or nobody knows when it ended."""
    if shot.job.ttl is None or not shot.run.finished:
        return None
    return shot.run.finished + shot.job.ttl - shot.now


def _all(shot: Snapshot) -> tuple[Member, ...]:
    return tuple(sorted((*shot.members, *shot.strays), key=identity))


# Whether a job is over, and why: success policy, deadline, failed slots, limit of retries.
#
# Success comes first: what was asked for is there, whatever else went wrong. What must never break: the
# result depends on slots, and on no order of members.


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
        return JobEnd("failed", "MemberFailed", "no remaining slot can complete")
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
        drop_services=tuple(key for key in ordered(shot.services) if not serves(shot.job, key)),
        create_services=tuple(key for key in wanted(shot.job) if key not in shot.services),
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
