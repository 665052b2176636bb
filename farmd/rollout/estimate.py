"""When a rollout may be over, by the pace of the pods that came so far: pure."""

from __future__ import annotations

from dataclasses import dataclass

from farmd.rollout.stages import goals
from store.rollouts import Rollout, RolloutStatus


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds until the end, or until the stage ``approval`` (from 1) waits for a person's word."""

    seconds: float
    approval: int = 0


def estimated(rollout: Rollout, status: RolloutStatus, now: float) -> Estimate | None:
    """None where nothing came yet, or where it stands still, waits for a word or goes back.

    The pace is that of the time without rests; rests that are to come are added.
    """
    stands = rollout.paused or rollout.wish or status.back or status.asks
    if stands or status.phase not in ("moving", "baking"):
        return None
    wanted, current = goals(rollout, status.minimum), status.stage - 1
    if not 0 <= current < len(wanted):
        return None
    ahead = (n for n in range(current + 1, len(wanted)) if wanted[n].approve and rollout.approved <= n)
    stop = next(ahead, len(wanted))
    rests, rested = [goal.bake for goal in wanted], sum(goal.bake for goal in wanted[:current])
    if status.phase == "baking":
        so_far = min(rests[current], max(0.0, now - status.began))
        rests[current], rested = rests[current] - so_far, rested + so_far
    left = max(0, wanted[stop - 1].new - status.new.available)
    done, spent = status.new.available - rollout.started_to, now - rollout.at - rested
    if left and (done <= 0 or spent <= 0):
        return None
    pace = spent / done if left else 0.0
    approval = stop + 1 if stop < len(wanted) else 0
    return Estimate(left * pace + sum(rests[current:stop]), approval)
