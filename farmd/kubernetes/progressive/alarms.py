"""What people are alerted of while a service is rolled, under keys that bear its uid.

``rollout_<uid>``: the newcomer failed. ``rollout_stuck_<uid>``: the way back makes no progress.
``rollout_waits_<uid>``: blocked or paused for an hour. These follow from the record and the status, so a farm
that takes the service over tells of them, too. ``rollout_contended_<uid>``: see ``contention.py``.
"""

from __future__ import annotations

from alerting.alert import Urgency
from farmd.kubernetes.progressive import record
from farmd.kubernetes.progressive.conditions import STAGE_READY
from farmd.kubernetes.progressive.model import Plan, Snapshot
from farmd.kubernetes.progressive.objects import CAUSE, condition
from farmd.work.status import StatusWriter

WAITS_SECONDS = 3600.0


def failure(knative: Snapshot) -> str:
    """Why the newcomer failed; empty: none did since a rollout came to its end."""
    if knative.orchestrator is None:
        return ""
    stopped = condition(knative.record.status.conditions, STAGE_READY)
    return knative.record.metadata.annotations.get(
        CAUSE, stopped.message if stopped.status == "False" else ""
    )


def phase(knative: Snapshot, plan: Plan) -> str:
    """Where a rollout is, for the metric; empty: none is under way."""
    if knative.orchestrator is None:
        return "pending"
    over = condition(knative.record.status.conditions, "Ready").status == "True"
    if over and knative.record.observed:
        return ""
    if record.paused(knative):
        return "paused"
    if plan.blocked is not None and plan.blocked.code == "failed":
        return "halted"
    return "back" if record.back(knative) else "moving"


async def tell(
    status: StatusWriter, item: str, knative: Snapshot, plan: Plan, now: float, contended: str | None = None
) -> float | None:
    """Fire and end what is due; the seconds until another alert is. ``contended``: see ``Contention``."""
    incidents = status.incidents

    async def say(key: str, text: str, urgency: Urgency = "low") -> None:
        summary = f"rollout ksvc/{knative.service.name}: {text}" if text else ""
        await incidents.say(f"{key}_{item}", summary, {}, urgency)

    await say("rollout", failure(knative))
    if contended is not None:
        await say("rollout_contended", contended)
    blocked = plan.blocked
    await say(
        "rollout_stuck", blocked.text if blocked is not None and blocked.code == "stuck" else "", "high"
    )
    if blocked is None or blocked.frozen:
        await say("rollout_waits", "")
        return None
    since = status.known.since if status.known is not None and status.known.state == "blocked" else now
    if (left := since + WAITS_SECONDS - now) > 0:
        return left
    await say("rollout_waits", f"waits for an hour: {blocked.text}")
    return None
