"""Where a rollout stands: its floor, its stage, what it goes to now, and whether that is reached: pure."""

from __future__ import annotations

import dataclasses

from farmd.rollout.model import Snapshot
from farmd.rollout.stages import StageGoal, goals, minimum, raised, turning_back
from store.policies import at_most


def floor(shot: Snapshot) -> int:
    """How many pods stay available by our doing; on the way back at least one may always leave."""
    least, began = minimum(shot.rollout), shot.rollout.started_from
    if shot.back:
        return min(least, began if shot.rollout.policy.beside else began - 1)
    return least


def goal(shot: Snapshot) -> StageGoal:
    """Where it goes now.

    After the switch of a service the stage rests again, for as long as the old pods stay; on the way back the
    service is switched back before any new pod leaves.
    """
    switched = shot.state is not None and shot.state.switched
    if shot.back:
        wanted = turning_back(shot.rollout)
        kept = switched and shot.new is not None
        return dataclasses.replace(wanted, new=shot.new.desired) if kept else wanted  # type: ignore[union-attr]
    wanted = stages(shot)[stage(shot)]
    if switched and not wanted.switch:
        wanted = dataclasses.replace(wanted, bake=shot.rollout.policy.keep_old)
    return raised(shot.rollout, wanted, shot.new.desired, floor(shot)) if shot.new is not None else wanted


def stages(shot: Snapshot) -> tuple[StageGoal, ...]:
    """The goals of all stages."""
    return goals(shot.rollout, floor(shot))


def stage(shot: Snapshot) -> int:
    """The present stage; a person may have edited the record so that there are fewer."""
    return min(shot.state.stage if shot.state is not None else 0, len(stages(shot)) - 1)


def last(shot: Snapshot) -> bool:
    """Whether the present stage is the last one."""
    return stage(shot) == len(stages(shot)) - 1


def complete(shot: Snapshot) -> bool:
    """Whether enough pods of the side that grows are available."""
    _, target = shot.sides
    if target.outdated:
        return False
    if not (shot.back or shot.rollout.policy.require_healthy_end) and last(shot):
        return True
    tolerated = at_most(shot.rollout.policy.tolerate, shot.rollout.replicas)
    return target.settled + target.waived + tolerated >= target.desired
