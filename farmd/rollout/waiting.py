"""Waiting for the end of a rollout, with its progress."""

from __future__ import annotations

from msgspec.structs import replace

from farmd import overview
from farmd.commands import waiting
from farmd.commands.mutation import Call, Change
from farmd.commands.waiting import Look, Report, fitting
from farmd.rollout import view
from farmd.rollout.commands import history, sight
from farmd.rollout.noun import ROLLOUT
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.errors import NotFound
from store.rollouts import Ended, Ending, Rollout, RolloutStatus
from store.words import lasting

ASKED: dict[str, Ending] = {"rollout.revert": "reverted", "rollout.abort": "aborted"}
"""How a rollout ends if it ends as was asked; otherwise with the new version."""


async def end(call: Call, change: Change, timeout: float, report: Report) -> None:
    """Wait until a rollout ends as the change asked: done, reverted or aborted.

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
    if over.outcome != ASKED.get(change.action, "done"):
        raise EndedOtherwise(
            f"rollout {change.name!r} was {over.outcome}: {over.reason}",
            hint=f"farmctl rollout history {change.name}",
        )


async def look(call: Call, change: Change) -> Look:
    """How far it is, also as the lines of ``rollout status``."""
    found = Look(name=change.name, noun="rollout", state="ended", desired=0, counts=False)
    try:
        records = ROLLOUT.records(call.client, call.keys)
        row: overview.Row[Rollout] = await overview.row(call.client, call.keys, records, change.id)
        seen, at = await sight(call, row), call.clock.now()
    except NotFound:
        over = await _ended(call, change)
        told = f"{over.outcome}: {over.reason}"
        end = [f"{over.name}  {over.outcome} after {lasting(over.ended - over.began)}: {over.reason}"]
        return replace(found, reason=told, draw=lambda width: fitting(end, width))
    status = row.status if isinstance(row.status, RolloutStatus) else None
    return replace(
        found,
        state=status.progress if status is not None else row.state,
        desired=row.record.replicas,
        available=status.new.available if status is not None else 0,
        reason=row.news,
        owner=row.owner,
        draw=lambda width: view.lines(seen, at, width),
    )


async def _ended(call: Call, change: Change) -> Ended:
    found = [each for each in await history(call, change.name) if each.id == change.id]
    if not found:
        raise NotFound(f"rollout {change.name!r} is gone, and history does not know it", id=change.id)
    return found[0]
