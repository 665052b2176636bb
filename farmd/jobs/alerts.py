"""The alert of a job that cannot go on, whichever backend runs it."""

from __future__ import annotations

from farmd.work.status import STUCK
from farmd.work.worker import ClaimedItem

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
