"""A rollout as people see it, in ``rollout status`` and while they wait: pure.

Each line fits the width that it is given: a bar that has no room is left out, and what is still too long is
folded.
"""

from __future__ import annotations

from dataclasses import dataclass

from farmd.commands.waiting import fitting
from farmd.rollout.membership import floored
from farmd.rollout.stages import goals
from store.rollouts import GateStatus, Rollout, RolloutStatus, SideStatus
from store.words import lasting

# When a rollout may be over, by the pace of the pods that came so far: pure.


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds until the end, or until the stage ``approval`` (counted from 1) waits for approval."""

    seconds: float
    approval: int = 0


def estimated(rollout: Rollout, status: RolloutStatus, now: float) -> Estimate | None:
    """None if no pod has come yet, or if the rollout is halted, waits for approval or goes back.

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


BAR = 10


@dataclass(frozen=True, slots=True)
class RolloutView:
    """What is known of a rollout.

    ``owner`` is the farm, ``reason`` what it waits for, ``old`` and ``new`` the names of both controllers.
    """

    rollout: Rollout
    status: RolloutStatus | None
    state: str
    owner: str
    reason: str
    old: str
    new: str


def lines(sight: RolloutView, now: float, width: int = 0) -> list[str]:
    """One line for itself, one a version, the floor, each gate's last answer, and what it waits for.

    ``width``: of the terminal; 0 for none.
    """
    status, name = sight.status, sight.rollout.name
    if status is None or not status.stage:
        told = [f"{name}  {sight.state}  {sight.owner or 'no farm'}"]
        return fitting([*told, f"  {sight.reason}"] if sight.reason else told, width)
    ailing = status.ailing.partition(" ")[0]
    floor = floored(
        status.minimum,
        min(status.old.available + status.old.serving, status.old.desired),
        min(status.new.available + status.new.serving, status.new.desired),
        ailing,
    )
    said = not sight.reason or sight.reason == floor or (ailing and ailing in sight.reason)
    reason = [] if said else [f"  {sight.reason}"]
    gates = [f"  gate {_gate(gate, now)}" for gate in status.gates]
    sides = _sides(sight, status, width)
    return fitting([_head(sight, status, now), *sides, f"  {floor}", *gates, *reason], width)


def _head(sight: RolloutView, status: RolloutStatus, now: float) -> str:
    rollout = sight.rollout
    stage = f"stage {status.stage} of {status.stages} ({status.goal} of {rollout.replicas})"
    times = [lasting(now - rollout.at)]
    if (eta := estimated(rollout, status, now)) is not None:
        times.append(_eta(eta))
    if (due := deadline(rollout, status)) is not None:
        times.append(f"deadline in {lasting(due - now)}" if due > now else "deadline over")
    phase = f"{status.phase}{', going back' if status.back and status.phase != 'back' else ''}"
    return f"{rollout.name}  {phase}  {stage}  {', '.join(times)}  {sight.owner or 'no farm'}"


def _eta(eta: Estimate) -> str:
    return f"eta {lasting(eta.seconds)}" + (
        f" to the approval of stage {eta.approval}" if eta.approval else ""
    )


def deadline(rollout: Rollout, status: RolloutStatus) -> float | None:
    """When it fails next unless it makes progress, or because all of it takes too long; None: never."""
    whole = rollout.at + rollout.policy.deadline if rollout.policy.deadline and not status.back else 0.0
    return min((at for at in (status.due, whole) if at), default=None)


def _gate(gate: GateStatus, now: float) -> str:
    """``errors  0.12 <= 0.5, passed 3 of 3, 8s ago``."""
    count, word = (gate.failures, "failed") if gate.failures else (gate.passes, "passed")
    when = f", {lasting(now - gate.at)} ago" if gate.at else ""
    return f"{gate.name}  {gate.text}, {word} {count} of {gate.wanted}{when}"


def _sides(sight: RolloutView, status: RolloutStatus, width: int) -> list[str]:
    """One line a version. Where a bar has no room, none has one."""
    rollout, size = sight.rollout, max(len(sight.old), len(sight.new))
    counts = (_count(status.old, "serve"), _count(status.new, "settled"))
    most = max(map(len, counts))
    whole = max(rollout.replicas, rollout.started_from, 1)
    told = [
        (f"  {word}  {name:<{size}}  {sha[:12]}  {count:<{most}}", bar(side, whole), ailing)
        for word, name, sha, count, side, ailing in (
            ("old", sight.old, rollout.from_manifest, counts[0], status.old, _ailing(status, old=True)),
            ("new", sight.new, rollout.to_manifest, counts[1], status.new, _ailing(status, old=False)),
        )
    ]
    if width and any(len(head) + 2 + len(bar) > width for head, bar, _ in told):
        return ["  ".join([head.rstrip(), *filter(None, [ailing])]) for head, _, ailing in told]
    return ["  ".join([head, bar, *filter(None, [ailing])]) for head, bar, ailing in told]


def _count(side: SideStatus, word: str) -> str:
    gap = f", {side.placed} placed" if side.placed != side.desired else ""
    others = f", {side.outdated} of a superseded version" if side.outdated else ""
    return f"{side.available} of {side.desired} {word}{gap}{others}"


def _ailing(status: RolloutStatus, *, old: bool) -> str:
    """The pod that the rollout is waiting for, on the line of its own version."""
    return status.ailing if old == status.back else ""


def bar(side: SideStatus, whole: int) -> str:
    """How many of all pods are available in this version."""
    full = round(BAR * min(side.available, whole) / whole)
    return "█" * full + "░" * (BAR - full)
