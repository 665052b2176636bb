"""The branches of a job that gets no more members: deleted, finished, suspended.

What must never break: what a member left behind (the verdict, the slots that are done) is durable before the
member is removed; a freeze holds every removal that no person asked for (R18).
"""

from __future__ import annotations

from dataclasses import replace

from farmd.jobs.members import Board, ends, identity, sort
from farmd.jobs.model import Member, Plan, Snapshot
from farmd.jobs.progress import RunProgress
from farmd.jobs.services import ordered
from farmd.jobs.standing import standing
from farmd.work.model import frozen


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
