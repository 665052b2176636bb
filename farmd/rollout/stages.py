"""From a policy to goals: how many pods each side shall have at the end of each stage: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from store.policies import Stage, at_least
from store.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class Goal:
    """The counts at a stage's end, and its rest (seconds). ``approve``: it waits for a word to begin."""

    new: int
    old: int
    bake: float = 0.0
    approve: bool = False


def minimum(rollout: Rollout) -> int:
    """Pods of both sides that stay available; all but one where nobody said it."""
    floor = rollout.policy.minimum
    return rollout.replicas - 1 if floor is None else at_least(floor, rollout.replicas)


def staged(stage: Stage | int | str) -> Stage:
    """A stage, however short people wrote it."""
    return stage if isinstance(stage, Stage) else Stage(to=stage)


def goals(rollout: Rollout, floor: int) -> list[Goal]:
    """The goals of all stages; the last one is the end. Stages with equal goals are one.

    No goal lies below the floor: the old side keeps what the new one cannot replace yet.
    """
    total, began = rollout.replicas, rollout.started_from
    *before, last = [staged(stage) for stage in rollout.policy.stages or (1, "100%")]
    found: list[Goal] = []
    for stage in before:
        new = min(total, at_least(stage.to, total))
        old = min(began, max(math.ceil(began * (total - new) / total), floor - new))
        if found and found[-1].new == new:
            found.pop()
        if rollout.started_to < new < total:
            found.append(Goal(new, old, stage.bake, stage.approve))
    kept = max(0, began - (total - rollout.started_to)) if rollout.policy.leave_old else 0
    return [*found, Goal(total, kept, last.bake, last.approve)]


def turning_back(rollout: Rollout) -> Goal:
    """The goal of the way back: everything as it began."""
    return Goal(0 if rollout.created_new else rollout.started_to, rollout.started_from)
