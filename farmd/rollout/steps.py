"""A stage as steps in order, within bounds: new pods before old ones go, or after that: pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from farmd.rollout.staging import (
    REVISION_LABEL,
    SERVICE_LABEL,
    Revisions,
    RolloutOrchestrator,
    StagePodAutoscaler,
    TargetRevision,
    last_stage_complete,
    remove_non_traffic_rev,
)

# A revision's bounds in a stage, and whether it reached its goal within them: pure (Knative's
# ``pkg/reconciler/rolloutorchestrator/strategies``).
#
# A maximum of 0 or None is no bound, so what is drained gets a maximum of 1.

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


# What a rollout's steps scale: controllers on bare metal, and whatever else has revisions.


class ScaleTarget(Protocol):
    """The revisions of one rollout as they were read, and the changes that a step wants.

    A step only plans: the worker carries out the changes under its fence, and then reads everything again.
    """

    def autoscaler(self, revision: str) -> StagePodAutoscaler | None:
        """A revision's bounds and scale, or None if it has none yet. What a change made uncertain is None."""

    def scale(self, wanted: StagePodAutoscaler) -> None:
        """Plan what is missing until a revision has these bounds; nothing where it has them."""


# A stage as steps in order: new pods before old ones go, or after that (Knative's
# ``pkg/reconciler/rolloutorchestrator/strategies``).
#
# What must never break: a step begins only once the one before it is verified.

AVAILABILITY_STRATEGY, RESOURCE_UTIL_STRATEGY = "availability", "resourceutil"

UpdateSPA = Callable[[StagePodAutoscaler, TargetRevision, bool], StagePodAutoscaler]


class RolloutStep(ABC):
    """One step of a stage."""

    @abstractmethod
    def execute(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> None:
        """Plan what the step changes."""

    @abstractmethod
    def verify(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> bool:
        """Whether the step has come to its end."""

    @abstractmethod
    def modify_status(self, rollout: RolloutOrchestrator, ready: bool) -> RolloutOrchestrator:
        """The rollout with the conditions that follow from that."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A strategy: the steps of each stage, in order."""

    steps: tuple[RolloutStep, ...]

    def reconcile(
        self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions
    ) -> tuple[RolloutOrchestrator, bool]:
        """The rollout with its conditions, and whether the stage is done.

        A stage that was done before only has its first step executed again.
        """
        for number, step in enumerate(self.steps):
            if number == 0 or rollout.stage_ready is None:
                step.execute(rollout, up, down)
            if rollout.stage_ready is None:
                ready = step.verify(rollout, up, down)
                rollout = step.modify_status(rollout, ready)
                if not ready:
                    return rollout, False
        return rollout, True


@dataclass(frozen=True, slots=True)
class BaseScaleStep(RolloutStep, ABC):
    """A step that changes the bounds of revisions."""

    target: ScaleTarget

    def create_or_update_spa_rev(
        self, rollout: RolloutOrchestrator, revision: TargetRevision, scale_up_ready: bool, update: UpdateSPA
    ) -> None:
        """Let a revision have the bounds of its stage."""
        standing = self.target.autoscaler(revision.revision_name)
        base = standing or create_base_stage_pod_autoscaler(rollout, revision)
        self.target.scale(update(base, revision, scale_up_ready))


class ScaleUpStep(BaseScaleStep):
    """New revisions grow."""

    def execute(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> None:
        """Raise the bounds of all that grow."""
        del down
        for revision in up.values():
            self.create_or_update_spa_rev(rollout, revision, True, update_spa_for_rev_up)

    def verify(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> bool:
        """Whether all have grown; until then what shrinks keeps its bounds, or gets its own."""
        if all(self._grown(revision) for revision in up.values()):
            return True
        for revision in down.values():
            self.create_or_update_spa_rev(rollout, revision, False, update_spa_for_rev_down)
        return False

    def _grown(self, revision: TargetRevision) -> bool:
        spa = self.target.autoscaler(revision.revision_name)
        return spa is not None and is_stage_scale_up_ready(spa, revision)

    def modify_status(self, rollout: RolloutOrchestrator, ready: bool) -> RolloutOrchestrator:
        """The stage is under way until it has grown."""
        if ready:
            return replace(rollout, stage_scale_up_ready=True)
        return replace(rollout, stage_scale_up_ready=None, stage_ready=None, last_stage_ready=None)


class ScaleDownStep(BaseScaleStep):
    """Old revisions shrink, until their pods are gone."""

    def execute(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> None:
        """Lower the bounds of all that shrink, or of all that are left in a rollout of one jump.

        A revision that is to grow afterwards and has no bounds yet gets none of its pods before.
        """
        for revision in up.values():
            if self.target.autoscaler(revision.revision_name) is None:
                base = create_base_stage_pod_autoscaler(rollout, revision)
                self.target.scale(replace(base, stage_min=0, stage_max=0))
        left = [each for each in rollout.initial_revisions if each.revision_name not in up]
        for revision in down.values() or [replace(each, percent=None) for each in left]:
            self.create_or_update_spa_rev(rollout, revision, True, update_spa_for_rev_down)

    def verify(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> bool:
        """Whether all have shrunk, and none of their pods is about to end."""
        del rollout, up
        return all(self._shrunk(revision) for revision in down.values())

    def _shrunk(self, revision: TargetRevision) -> bool:
        spa = self.target.autoscaler(revision.revision_name)
        return spa is not None and spa.terminating == 0 and is_stage_scale_down_ready(spa, revision)

    def modify_status(self, rollout: RolloutOrchestrator, ready: bool) -> RolloutOrchestrator:
        """The stage is under way until it has shrunk."""
        if ready:
            return replace(rollout, stage_scale_down_ready=True)
        return replace(rollout, stage_scale_down_ready=None, stage_ready=None, last_stage_ready=None)


def concluded(rollout: RolloutOrchestrator) -> RolloutOrchestrator:
    """A rollout whose strategy is ready: the stage is done, the next one is begun, or all is over."""
    if rollout.stage_ready is None:
        status = rollout.stage_target_revisions
        if len(rollout.target_revisions) < len(status):
            status = remove_non_traffic_rev(status)
        over = last_stage_complete(status, rollout.target_revisions)
        return replace(rollout, stage_revision_status=status, stage_ready=True, last_stage_ready=over or None)
    over = last_stage_complete(rollout.stage_revision_status, rollout.target_revisions)
    now = None if rollout.ready is None and not over else True
    return replace(
        rollout, stage_scale_up_ready=now, stage_scale_down_ready=now, stage_ready=now, last_stage_ready=now
    )


def new_rollout_strategy(target: ScaleTarget) -> dict[str, Rollout]:
    """The strategies by name: always available, or never more pods than before."""
    up, down = ScaleUpStep(target), ScaleDownStep(target)
    return {AVAILABILITY_STRATEGY: Rollout((up, down)), RESOURCE_UTIL_STRATEGY: Rollout((down, up))}
