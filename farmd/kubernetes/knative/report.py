"""The status of a record at each turn, and the alerts of its rollout: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from alerting.alert import Urgency
from farmd.kubernetes.knative import record
from farmd.kubernetes.knative.bounds import (
    FAILED,
    HELD,
    LAST_STAGE_READY,
    ORCHESTRATOR,
    ROLLING,
    STAGE_DOWN_READY,
    STAGE_FAILED,
    STAGE_READY,
    STAGE_UP_READY,
    START,
    ConditionText,
    marked,
)
from farmd.kubernetes.knative.facts import Plan, Snapshot
from farmd.kubernetes.knative.objects import CAUSE, RESUMED, OrchestratorStatus, condition
from farmd.rollout import steps
from farmd.rollout.staging import RolloutOrchestrator, TargetRevision
from farmd.work.status import StatusWriter

# What people are alerted of while a service is rolled, under keys that bear its uid.
#
# ``rollout_<uid>``: the newcomer failed. ``rollout_stuck_<uid>``: the way back makes no progress.
# ``rollout_waits_<uid>``: blocked or paused for an hour. These follow from the record and the status, so a
# farm that takes the service over tells of them, too. ``rollout_contended_<uid>``: see ``contention.py``.

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


# The status of a record at each turn: pure.

# What people had said of resuming when a fault stopped the rollout: another value resumes it.
HALTED = "farmd.io/halted"
# The shares with which the rollout began whose stage was observed last.
BEGAN = "farmd.io/began"


def _status(knative: Snapshot, marks: dict[str, ConditionText], **changes: Any) -> OrchestratorStatus:
    before = knative.record.status
    return replace(
        before,
        conditions=marked(before.conditions, marks, ORCHESTRATOR, knative.now),
        observed_generation=knative.record.metadata.generation,
        **changes,
    )


def under_way(knative: Snapshot) -> OrchestratorStatus:
    """A stage that begins, or goes on. What an earlier rollout finished is nothing that a stage of another
    one may hold: its pods are gone.
    """
    start, rolling = ConditionText(None, START), ConditionText(None, ROLLING)
    marks = {STAGE_UP_READY: start, STAGE_DOWN_READY: start, STAGE_READY: start, LAST_STAGE_READY: rolling}
    before, initial = knative.record.status, knative.record.spec.initial_revisions
    finished, began = before.stage_revision_status, _spelt(initial)
    if before.annotations.get(BEGAN, began if finished else "") != began:
        finished = initial
    annotations = {**before.annotations, BEGAN: began}
    return _status(knative, marks, stage_revision_status=finished, annotations=annotations)


def _spelt(revisions: Iterable[TargetRevision]) -> str:
    return ",".join(f"{each.revision_name}={each.percent}" for each in revisions)


def concluded(knative: Snapshot, rollout: RolloutOrchestrator) -> OrchestratorStatus:
    """A stage that is done, and the rollout with it if it was the last one."""
    found = steps.concluded(rollout)
    last = ConditionText(True) if found.last_stage_ready else ConditionText(None, ROLLING)
    done = dict.fromkeys((STAGE_UP_READY, STAGE_DOWN_READY, STAGE_READY), ConditionText(True))
    return _status(
        knative, {**done, LAST_STAGE_READY: last}, stage_revision_status=found.stage_revision_status
    )


def stopped(knative: Snapshot, cause: str) -> OrchestratorStatus:
    """A rollout that waits for a person; it remembers what people said until then."""
    marks = {
        STAGE_READY: ConditionText(False, STAGE_FAILED, cause),
        LAST_STAGE_READY: ConditionText(False, FAILED, cause),
    }
    says = knative.record.metadata.annotations.get(RESUMED, "")
    return _status(knative, marks, annotations={**knative.record.status.annotations, HALTED: says})


def held(knative: Snapshot) -> OrchestratorStatus:
    """A stage that a person holds."""
    return _status(knative, {STAGE_READY: ConditionText(None, HELD, "a person paused it")})
