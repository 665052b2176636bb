"""Waiting for the end of a rollout of a Knative Service, with its progress."""

from __future__ import annotations

from farmd.commands import waiting
from farmd.commands.mutation import Call, Change
from farmd.commands.waiting import Look, Report
from farmd.kubernetes.progressive import plan, reading, record
from farmd.kubernetes.progressive.people import view
from farmd.kubernetes.progressive.people.found import KIND, FoundService, Services, told
from farmd.runtime.errors import EndedOtherwise, WaitTimeout

BACK = f"{KIND}.revert"


async def end(call: Call, services: Services, change: Change, timeout: float, report: Report) -> None:
    """Wait until the rollout ends as the word asked: at its target, or, after ``revert``, where it began.

    Raises:
        EndedOtherwise: it ended in another way, or a fault halted it.
        WaitTimeout: it is not over; it goes on.
    """
    last: list[FoundService] = []

    async def look() -> Look:
        seen = await owned(call, services, *change.name.split("/"))
        last[:] = [seen]
        row = view.row(seen)
        state = "ended" if row.phase in ("done", "halted", "off") and not _pending(seen) else row.phase
        return Look(
            name=change.name,
            noun="ksvc",
            state=state,
            desired=0,
            counts=False,
            reason=row.reason,
            owner=row.owner,
            draw=lambda width: view.lines(seen, width),
        )

    async def late(now: Look) -> WaitTimeout:
        text = f"the rollout of ksvc/{change.name} is not over after {timeout:g} s: {waiting.describe(now)}"
        return WaitTimeout(text, hint=f"farmctl rollout status ksvc/{change.name}")

    await waiting.until(call, look, lambda now, _: now.state == "ended", late, timeout, report)
    knative = last[0].knative
    row, reverted = view.row(last[0]), record.back(knative)
    if row.phase != "done" or reverted != (change.action == BACK):
        how = (
            "went back" if row.phase == "done" and reverted else "ended" if row.phase == "done" else row.phase
        )
        raise EndedOtherwise(
            f"the rollout of ksvc/{change.name} {how}: {row.reason or row.shares}",
            hint=f"farmctl rollout explain ksvc/{change.name}",
        )


def _pending(seen: FoundService) -> bool:
    """Whether a farm has not acted yet on what was said or changed."""
    if seen.knative.orchestrator is None:
        return False
    planned = plan.decide(seen.knative)
    return planned.turn is not None or reading.rollout(seen.knative).ready is None


async def owned(call: Call, services: Services, namespace: str, name: str) -> FoundService:
    """A service, with the farm that owns its rollout."""
    seen = await services.get(namespace, name)
    return seen.with_word_of(await told(call))
