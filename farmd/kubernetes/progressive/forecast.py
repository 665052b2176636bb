"""The stages that a rollout has ahead of it, if each gets the pods that it asks for: pure.

For people alone: ``rollout plan``, and how far a rollout is. No farm acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from farmd.kubernetes.progressive import record
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import (
    AutoscalerStatus,
    Meta,
    OrchestratorSpec,
    PodAutoscaler,
    Revision,
    StageAutoscaler,
)
from farmd.kubernetes.progressive.targets import Revisions
from farmd.kubernetes.progressive.traffic import actual
from farmd.rollout.staging import TargetRevision, last_stage_complete, remove_non_traffic_rev
from farmd.rollout.steps import RESOURCE_UTIL_STRATEGY

MOST_STAGES = 200


@dataclass(frozen=True, slots=True)
class Stage:
    """The goal of one stage; ``peak`` is how many pods there are at once, as far as bounds decide it."""

    revisions: Revisions
    peak: int


def ahead(knative: Snapshot, spec: OrchestratorSpec) -> tuple[Stage, ...]:
    """The stage of ``spec`` and those after it."""
    found: list[Stage] = []
    while spec.stage_target_revisions and len(found) < MOST_STAGES:
        stage = spec.stage_target_revisions
        before, knative = knative, _reached(knative, stage)
        found.append(Stage(stage, _peak(before, knative, spec)))
        finished = remove_non_traffic_rev(stage)
        if last_stage_complete(finished, spec.target_revisions):
            break
        following = record.staged(knative, spec, finished)
        if following is None or following.stage_target_revisions == stage:
            break
        spec = following
    return tuple(found)


def position(knative: Snapshot) -> tuple[int, int]:
    """The number of the present stage, and of all: as if the rollout had begun with the pods of today."""
    spec = knative.record.spec
    left = len(ahead(knative, spec))
    start = [each for each in spec.initial_revisions if each.percent]
    pods = sum(actual(knative, each.revision_name) or 0 for each in (*start, *spec.target_revisions))
    for each in start:
        share = each.min_scale if each.min_scale is not None else pods * (each.percent or 0) // 100
        knative = _scaled(knative, each.revision_name, max(1, share))
    whole = record.staged(knative, msgspec.structs.replace(spec, stage_target_revisions=()), ())
    total = max(left, len(ahead(knative, whole)) if whole is not None else 0)
    return total - left + 1, total


def _reached(knative: Snapshot, stage: Revisions) -> Snapshot:
    """Everything once a stage is done."""
    for each in stage:
        knative = _scaled(knative, each.revision_name, _pods(knative, each))
    return knative


def _pods(knative: Snapshot, goal: TargetRevision) -> int:
    """How many pods a revision has at the end of a stage."""
    if goal.percent is None:
        return 0
    if goal.target_replicas is not None:
        return goal.target_replicas
    stands = actual(knative, goal.revision_name) or 0
    return stands if goal.direction == "stay" else max(stands, goal.min_scale or 0)


def _scaled(knative: Snapshot, name: str, pods: int) -> Snapshot:
    """With so many pods of a revision, and bounds of a stage."""
    meta, status = Meta(name=name), AutoscalerStatus(desired_scale=pods, actual_scale=pods)
    return replace(
        knative,
        autoscalers={**knative.autoscalers, name: PodAutoscaler(metadata=meta, status=status)},
        revisions={**knative.revisions, name: knative.revisions.get(name, Revision(metadata=meta))},
        spas={**knative.spas, name: knative.spas.get(name, StageAutoscaler(metadata=meta))},
    )


def _peak(before: Snapshot, after: Snapshot, spec: OrchestratorSpec) -> int:
    """The most pods at once in a stage: what grows comes before what shrinks goes, or after it."""
    stage = {each.revision_name for each in spec.stage_target_revisions}
    pairs = [(actual(before, name) or 0, actual(after, name) or 0) for name in stage]
    # What a jump does not name goes in it.
    gone = {each.revision_name for each in spec.initial_revisions} - stage
    pairs += [(actual(before, name) or 0, 0) for name in gone]
    if spec.rollout_strategy == RESOURCE_UTIL_STRATEGY:
        return max(sum(old for old, _ in pairs), sum(new for _, new in pairs))
    return sum(max(pair) for pair in pairs)
