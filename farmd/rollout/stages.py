"""From a policy to goals: how many pods each side shall have at the end of each stage: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
        if found and found[-1].new == new:
            found.pop()
        if rollout.started_to < new < total:
            found.append(Goal(new, _beside(rollout, new, floor), stage.bake, stage.approve))
    kept = max(0, began - (total - rollout.started_to)) if rollout.policy.leave_old else 0
    return [*found, Goal(total, kept, last.bake, last.approve)]


def raised(rollout: Rollout, goal: Goal, new: int, floor: int) -> Goal:
    """The goal of a stage that has this many new pods already: after a scale it may ask for fewer."""
    if goal.new >= min(new, rollout.replicas):
        return goal
    new = min(new, rollout.replicas)
    return replace(goal, new=new, old=_beside(rollout, new, floor))


def _beside(rollout: Rollout, new: int, floor: int) -> int:
    """How many old pods there are to be beside so many new ones."""
    began, total = rollout.started_from, rollout.replicas
    return min(began, max(math.ceil(began * (total - new) / total), floor - new))


def turning_back(rollout: Rollout) -> Goal:
    """The goal of the way back: everything as it began."""
    return Goal(0 if rollout.created_new else rollout.started_to, rollout.started_from)
