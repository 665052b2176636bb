"""What people, alerts and metrics are told of a job on nodes."""

from __future__ import annotations

from farmd.jobs.facts import Plan
from farmd.jobs.reader import Facts
from farmd.work.status import STUCK
from farmd.work.worker import ClaimedItem
from store.jobs import JobStatus
from store.words import count_of

# The alert of a job that cannot go on, whichever backend runs it.

BLOCKED_SECONDS = 600.0


async def tell_blocked(item: ClaimedItem, name: str, why: str) -> float | None:
    """Alert of a job whose status says ``blocked`` for ten minutes; without ``why`` that is over.

    Returns the seconds until the alert is due.
    """
    incidents, known, now = item.status.incidents, item.status.known, item.context.clock.now()
    key = f"job_blocked_{item.claim.item}"
    if not why:
        await incidents.end(key)
        return None
    since = known.since if known is not None and known.state in STUCK else now
    if (left := since + BLOCKED_SECONDS - now) > 0:
        return left
    details = {"job_id": item.claim.item, "farm": item.context.farm}
    await incidents.say(key, f"job {name!r} is blocked: {why}", details)
    return None


# What people and metrics are told of a job on nodes.

GIVES_BACK = "not all members of the gang were ready in time, so it gives its places back"


def status(reading: Facts, plan: Plan, farm: str, since: float) -> JobStatus:
    """The status of a job; ``since`` is the time of a new state."""
    told, blocked = plan.status, plan.blocked
    counts = told.counts.values()
    state, reason = str(told.state), ": ".join(part for part in (told.reason, told.message) if part)
    if blocked is not None:
        state, reason = "frozen" if blocked.frozen else "blocked", blocked.text
    running = sum(each.running for each in counts)
    return JobStatus(
        state=state,
        reason=reason,
        farm=farm,
        since=since,
        desired=reading.stored.record.size,
        done=sum(each.succeeded for each in counts),
        failed=sum(each.failed for each in counts),
        placed=running + sum(each.starting for each in counts),
        healthy=running,
        restarts=told.restarts,
    )


def why(reading: Facts, plan: Plan) -> str:
    """The reason of changes that come without a new run, in one line for the audit."""
    job, gone = reading.stored.record, len(plan.remove)
    if plan.give_back:
        return GIVES_BACK
    if not gone:
        return "all members of the gang are ready" if plan.release else ""
    if job.deleting:
        return "it is being deleted"
    if reading.snapshot.run.outcome:
        return f"it is over: {reading.snapshot.run.outcome}"
    return "it was stopped" if job.suspend else f"{count_of(gone, 'member')} of former attempts"
