"""The status of a record at each turn: pure."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from farmd.kubernetes.progressive.conditions import (
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
    Mark,
    marked,
)
from farmd.kubernetes.progressive.model import Knative
from farmd.kubernetes.progressive.objects import RESUMED, OrchestratorStatus
from farmd.rollout import steps
from farmd.rollout.revisions import RolloutOrchestrator

# What people had said of resuming when a fault stopped the rollout: another value resumes it.
HALTED = "farmd.io/halted"


def _status(knative: Knative, marks: dict[str, Mark], **changes: Any) -> OrchestratorStatus:
    before = knative.record.status
    return replace(
        before,
        conditions=marked(before.conditions, marks, ORCHESTRATOR, knative.now),
        observed_generation=knative.record.metadata.generation,
        **changes,
    )


def under_way(knative: Knative) -> OrchestratorStatus:
    """A stage that begins, or goes on."""
    start, rolling = Mark(None, START), Mark(None, ROLLING)
    marks = {STAGE_UP_READY: start, STAGE_DOWN_READY: start, STAGE_READY: start, LAST_STAGE_READY: rolling}
    return _status(knative, marks)


def concluded(knative: Knative, rollout: RolloutOrchestrator) -> OrchestratorStatus:
    """A stage that is done, and the rollout with it if it was the last one."""
    found = steps.concluded(rollout)
    last = Mark(True) if found.last_stage_ready else Mark(None, ROLLING)
    done = dict.fromkeys((STAGE_UP_READY, STAGE_DOWN_READY, STAGE_READY), Mark(True))
    return _status(
        knative, {**done, LAST_STAGE_READY: last}, stage_revision_status=found.stage_revision_status
    )


def stopped(knative: Knative, cause: str) -> OrchestratorStatus:
    """A rollout that waits for a person; it remembers what people said until then."""
    marks = {STAGE_READY: Mark(False, STAGE_FAILED, cause), LAST_STAGE_READY: Mark(False, FAILED, cause)}
    says = knative.record.metadata.annotations.get(RESUMED, "")
    return _status(knative, marks, annotations={**knative.record.status.annotations, HALTED: says})


def held(knative: Knative) -> OrchestratorStatus:
    """A stage that a person holds."""
    return _status(knative, {STAGE_READY: Mark(None, HELD, "a person paused it")})
