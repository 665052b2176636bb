"""The status of a record at each turn: pure."""

from __future__ import annotations

from collections.abc import Iterable
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
    ConditionText,
    marked,
)
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import RESUMED, OrchestratorStatus
from farmd.rollout import steps
from farmd.rollout.staging import RolloutOrchestrator, TargetRevision

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
