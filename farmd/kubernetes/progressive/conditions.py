"""Conditions of a RolloutOrchestrator and of a StagePodAutoscaler: pure (Knative's ``ConditionManager``).

``Ready`` follows from the conditions that it depends on: one that is False decides, then one that is not
known, and the newest of these gives the reason. All others have the severity Info.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from farmd.kubernetes.progressive.objects import UNKNOWN, KnativeCondition, condition
from store.times import rfc3339

READY = "Ready"
STAGE_READY, LAST_STAGE_READY = "StageReady", "LastStageReady"
STAGE_UP_READY, STAGE_DOWN_READY = "StageScaleUpReady", "StageScaleDownReady"
SCALE_READY = "PodAutoscalerStageReady"
ORCHESTRATOR = (STAGE_READY, LAST_STAGE_READY)
AUTOSCALER = (SCALE_READY,)

START, ROLLING = "StageRevisionStart", "RevisionRollingInProgress"
# The reason of a rollout that a person paused.
HELD = "RolloutPaused"
STAGE_FAILED, FAILED = "StageRevisionRolloutFailed", "RevisionRolloutFailed"
NOT_READY = "PodAutoscalerStageNotReady"


class ConditionText(NamedTuple):
    """What a condition is to say; None: it is under way."""

    value: bool | None
    reason: str = ""
    message: str = ""


def marked(
    found: Sequence[KnativeCondition],
    marks: Mapping[str, ConditionText],
    dependents: Sequence[str],
    now: float,
) -> tuple[KnativeCondition, ...]:
    """The conditions with these marks, sorted by type. What does not change keeps the time of its change."""
    standing = {each.type: each for each in found if each.type != READY}
    for name in dependents:
        standing.setdefault(name, KnativeCondition(type=name, status=UNKNOWN))
    for name, mark in marks.items():
        wanted = KnativeCondition(
            type=name,
            status=UNKNOWN if mark.value is None else str(mark.value),
            severity="" if name in dependents else "Info",
            reason=mark.reason,
            message=mark.message,
        )
        standing[name] = _dated(standing.get(name), wanted, now)
    standing[READY] = _dated(condition(tuple(found), READY), _ready(standing, dependents), now)
    return tuple(standing[name] for name in sorted(standing))


def _ready(standing: Mapping[str, KnativeCondition], dependents: Sequence[str]) -> KnativeCondition:
    decisive = [standing[name] for name in dependents]
    for status in ("False", UNKNOWN):
        those = [each for each in decisive if each.status == status]
        if those:
            newest = max(those, key=lambda each: each.last_transition_time or "")
            return KnativeCondition(type=READY, status=status, reason=newest.reason, message=newest.message)
    return KnativeCondition(type=READY, status="True")


def _dated(before: KnativeCondition | None, wanted: KnativeCondition, now: float) -> KnativeCondition:
    if before is None or not before.last_transition_time:
        return msgspec.structs.replace(wanted, last_transition_time=rfc3339(now))
    if msgspec.structs.replace(before, last_transition_time=None) == wanted:
        return before
    return msgspec.structs.replace(wanted, last_transition_time=rfc3339(now))


def known(found: Sequence[KnativeCondition], name: str) -> bool | None:
    """What a condition says; None: it is under way, or missing."""
    return {"True": True, "False": False}.get(condition(tuple(found), name).status)
