"""A revision's bounds in a stage, and whether it reached its goal within them: pure (Knative's
``pkg/reconciler/rolloutorchestrator/strategies``).

A maximum of 0 or None is no bound, so what is drained gets a maximum of 1.
"""

from __future__ import annotations

from msgspec.structs import replace

from farmd.rollout.revisions import (
    REVISION_LABEL,
    SERVICE_LABEL,
    RolloutOrchestrator,
    StagePodAutoscaler,
    TargetRevision,
)

UNLIMITED = 2**31 - 1


def create_base_stage_pod_autoscaler(
    rollout: RolloutOrchestrator, revision: TargetRevision
) -> StagePodAutoscaler:
    """The bounds of a revision before any stage changed them: its own."""
    return StagePodAutoscaler(
        name=revision.revision_name,
        namespace=rollout.namespace,
        owner=rollout.name,
        labels={REVISION_LABEL: revision.revision_name, SERVICE_LABEL: rollout.name},
        stage_min=revision.min_scale,
        stage_max=revision.max_scale,
    )


def is_stage_scale_up_ready(spa: StagePodAutoscaler, revision: TargetRevision) -> bool:
    """Whether a revision that grows has what its stage asks for.

    A goal within the revision's minimum must be reached; beyond that the traffic decides how many there are.
    """
    least, goal = revision.min_scale or 0, revision.target_replicas
    if spa.desired is None or spa.actual is None:
        return False
    if goal is None:
        return least <= spa.actual <= (revision.max_scale or UNLIMITED)
    return min(spa.desired, spa.actual) >= min(goal, least)


def is_stage_scale_down_ready(spa: StagePodAutoscaler, revision: TargetRevision) -> bool:
    """Whether a revision that shrinks has no more than its stage leaves it."""
    if spa.desired is None or spa.actual is None:
        return False
    goal = revision.target_replicas
    limit = (revision.max_scale or UNLIMITED) if goal is None else goal
    return max(spa.desired, spa.actual) <= limit


def update_spa_for_rev_up(
    spa: StagePodAutoscaler, revision: TargetRevision, scale_up_ready: bool = True
) -> StagePodAutoscaler:
    """The bounds with the minimum of the stage; the maximum stays, so that the revision may always burst."""
    del scale_up_ready  # what grows does so whatever else is ready
    goal, least = revision.target_replicas, revision.min_scale
    if goal is not None and goal < (least or 0) and (revision.percent or 0) < 100:
        least = goal
    return replace(spa, stage_min=least, stage_max=revision.max_scale)


def update_spa_for_rev_down(
    spa: StagePodAutoscaler, revision: TargetRevision, scale_up_ready: bool
) -> StagePodAutoscaler:
    """The bounds that leave the revision what the stage leaves it; unchanged before the others are up."""
    if not scale_up_ready or not revision.revision_name:
        return spa
    goal, least = revision.target_replicas, revision.min_scale
    if revision.percent is None:
        return replace(spa, stage_min=0, stage_max=1)
    if goal is None or goal >= (revision.max_scale or UNLIMITED):
        return replace(spa, stage_min=least, stage_max=revision.max_scale)
    if goal == 0:
        return replace(spa, stage_min=0, stage_max=1)
    return replace(spa, stage_min=min(goal, least or 0), stage_max=goal)
