"""Both controllers of a rollout as what its strategy's steps scale: pure.

A controller's bounds are its count, and its scale is how many of its pods are available. Which pods come or
go until it has a count is decided in ``membership``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from farmd.rollout import membership
from farmd.rollout.model import Moves, Need, Side, Snapshot
from farmd.rollout.revisions import (
    RolloutOrchestrator,
    StagePodAutoscaler,
    TargetRevision,
    retrieve_revs_up_down,
)
from farmd.rollout.stages import StageGoal, ceiling, goals, minimum
from farmd.rollout.steps import AVAILABILITY_STRATEGY, RESOURCE_UTIL_STRATEGY, concluded, new_rollout_strategy
from store.policies import at_most


def carried_out(shot: Snapshot, goal: StageGoal, floor: int, healthy: bool) -> tuple[bool, Moves | Need]:
    """Whether the stage is done, and what to move now; ``healthy``: pods that come must be available."""
    rollout = orchestrator(shot, goal, floor)
    controllers = Controllers(shot, goal, floor, healthy)
    strategy = new_rollout_strategy(controllers)[rollout.rollout_strategy]
    up, down = retrieve_revs_up_down(rollout.stage_target_revisions)
    rollout, ready = strategy.reconcile(rollout, up, down)
    done = ready and concluded(rollout).stage_ready is True
    return done, membership.restored(shot, controllers.planned, goal, floor)


def orchestrator(shot: Snapshot, goal: StageGoal, floor: int) -> RolloutOrchestrator:
    """The stage of a rollout as its steps see it: one controller grows, the other one shrinks.

    What grows has at most what the ceiling leaves it, until more of the others are gone. Where old pods go
    first, only so many go that the floor holds without those that are to come.
    """
    (source, target), record = shot.sides, shot.rollout
    stay, there = (goal.new, goal.old) if shot.back else (goal.old, goal.new)
    whole = record.started_from if shot.back else record.replicas
    first = stay
    strategy = AVAILABILITY_STRATEGY
    if not record.policy.beside:
        first = max(stay, min(source.desired, floor - target.desired))
        strategy = RESOURCE_UTIL_STRATEGY
    most = ceiling(record, goals(record, minimum(record))) - source.desired - source.terminating
    grows = min(there, max(target.desired, most))
    return RolloutOrchestrator(
        name=record.name,
        rollout_strategy=strategy,
        initial_revisions=(TargetRevision(revision_name=source.rc.id, percent=100),),
        target_revisions=(TargetRevision(revision_name=target.rc.id, percent=100),),
        stage_target_revisions=(
            _revision(source, first, max(source.desired, stay), "down"),
            _revision(target, grows, whole, "up"),
        ),
    )


def _revision(side: Side, count: int, whole: int, direction: Literal["up", "down"]) -> TargetRevision:
    part = count if direction == "up" else whole - count
    share = part * 100 // whole if whole else 100
    return TargetRevision(
        revision_name=side.rc.id,
        direction=direction,
        percent=share if direction == "up" else (100 - share) or None,
        target_replicas=count,
        min_scale=whole,
        max_scale=whole,
    )


@dataclass(slots=True)
class Controllers:
    """The controllers of a moment (``ScaleTarget``). ``planned``: the moves of the first step with any."""

    shot: Snapshot
    goal: StageGoal
    floor: int
    healthy: bool
    planned: Moves | Need = field(default_factory=Moves)

    def autoscaler(self, revision: str) -> StagePodAutoscaler | None:
        """A controller's count, and how many of its pods are there; not known once some are to be moved."""
        source, target = self.shot.sides
        grows = revision == target.rc.id
        side = target if grows else source
        found = StagePodAutoscaler(name=revision, stage_min=side.desired, stage_max=side.desired)
        if self.moving:
            return found
        actual = self._serving(side) if grows else side.placed
        return msgspec.structs.replace(
            found, desired=side.desired, actual=actual, terminating=side.terminating
        )

    def scale(self, wanted: StagePodAutoscaler) -> None:
        """Plan the moves of one transaction toward a count, unless a step before has some."""
        if self.moving:
            return
        stay = self.goal.new if self.shot.back else self.goal.old
        change = membership.grown if wanted.name == self.shot.sides[1].rc.id else membership.shrunk
        found = change(self.shot, wanted.stage_min or 0, stay, self.floor)
        if isinstance(found, Need) or found.moves or found.short:
            self.planned = found

    @property
    def moving(self) -> bool:
        """Whether a step has planned moves."""
        return isinstance(self.planned, Need) or bool(self.planned.moves)

    def _serving(self, side: Side) -> int:
        """Pods that count as available; those that are not placed yet never do."""
        if not self.healthy:
            return side.desired - side.missing - len(side.outdated)
        tolerated = at_most(self.shot.rollout.policy.tolerate, self.shot.rollout.replicas)
        return min(side.desired, side.settled + side.waived + tolerated) - side.missing
