"""Waiting for the end of a rollout, with its progress."""

from __future__ import annotations

from farmd.commands import waiting
from farmd.commands.mutation import Call, Change
from farmd.commands.waiting import Look, Report
from farmd.rollout.commands import history
from farmd.rollout.noun import live
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.errors import NotFound
from store.history import Ended
from store.rollouts import KIND, RolloutStatus
from store.status import StatusStore


async def end(call: Call, change: Change, timeout: float, report: Report) -> None:
    """Wait until a rollout is done, or reverted if that was the change.

    Raises:
        EndedOtherwise: it ended in another way.
        WaitTimeout: it is not over; it goes on.
    """

    async def now() -> Look:
        return await look(call, change)

    async def late(now: Look) -> WaitTimeout:
        text = f"rollout {change.name!r} is not over after {timeout:g} s: {waiting.describe(now)}"
        return WaitTimeout(text, hint=f"farmctl rollout status {change.name}")

    await waiting.until(call, now, lambda now, _: now.state == "ended", late, timeout, report)
    over = await _ended(call, change)
    if over.outcome != ("reverted" if change.action == "rollout.revert" else "done"):
        raise EndedOtherwise(
            f"rollout {change.name!r} was {over.outcome}: {over.reason}",
            hint=f"farmctl rollout history {change.name}",
        )


async def look(call: Call, change: Change) -> Look:
    try:
        rollout = (await live(call).get(change.id)).record
    except NotFound:
        return Look(name=change.name, noun="rollout", state="ended", desired=0, counts=False)
    status = await StatusStore(call.client, call.keys, KIND, RolloutStatus).get(change.id)
    if status is None:
        return Look(name=change.name, noun="rollout", state="pending", desired=0, counts=False)
    return Look(
        name=change.name,
        noun="rollout",
        state=status.progress,
        desired=rollout.replicas,
        available=status.new.available,
        reason=status.reason,
        counts=False,
    )


async def _ended(call: Call, change: Change) -> Ended:
    found = [each for each in await history(call, change.name) if each.id == change.id]
    if not found:
        raise NotFound(f"rollout {change.name!r} is gone, and history does not know it", id=change.id)
    return found[0]
