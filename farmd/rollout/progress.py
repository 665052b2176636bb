"""How far a rollout is, when it fails, and what follows: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar

from msgspec.structs import replace

from farmd.pods.state import PodState, replaceable_at, settling, sick_since
from farmd.rollout import judgement
from farmd.rollout.facts import Plan, Side, Snapshot, Turn
from farmd.rollout.stages import StageGoal, goals, minimum, raised, turning_back
from store.pods import Place
from store.policies import Gate, Part, at_least, at_most, staged
from store.rollouts import RolloutState

# Where a rollout stands: its floor, its stage, what it goes to now, and whether that is reached: pure.

T = TypeVar("T")


def once(derive: Callable[[Snapshot], T]) -> Callable[[Snapshot], T]:
    """Derive it once per snapshot: every phase of a cycle asks for it, and a snapshot never changes."""

    @wraps(derive)
    def known(shot: Snapshot) -> T:
        if derive not in shot.derived:
            shot.derived[derive] = derive(shot)
        found: T = shot.derived[derive]
        return found

    return known


@once
def floor(shot: Snapshot) -> int:
    """How many pods stay available by our doing; on the way back at least one may always leave."""
    least, began = minimum(shot.rollout), shot.rollout.started_from
    if shot.back:
        return min(least, began if shot.rollout.policy.beside else began - 1)
    return least


@once
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
    return raised(shot.rollout, wanted, _arrived(shot), floor(shot)) if shot.new is not None else wanted


def _arrived(shot: Snapshot) -> int:
    """How many new pods a stage keeps. Those beside all others, until a superseded version is replaced, are
    no part of it.
    """
    assert shot.new is not None
    record, count = shot.rollout, shot.new.desired
    if shot.new.outdated and shot.old is not None and record.policy.strategy == "availability":
        count -= max(0, shot.old.desired + count - record.replicas)
    return count


@once
def stages(shot: Snapshot) -> tuple[StageGoal, ...]:
    """The goals of all stages."""
    return goals(shot.rollout, floor(shot))


@once
def stage(shot: Snapshot) -> int:
    """The present stage. A scale may leave fewer of them: by that none begins that waits for a word, and none
    before which the service is to be switched.
    """
    state, found = shot.state, stages(shot)
    number = min(state.stage if state is not None else 0, len(found) - 1)
    while state is not None and not state.back and number and _early(shot, state, number):
        number -= 1
    return number


def _early(shot: Snapshot, state: RolloutState, number: int) -> bool:
    """Whether what comes before a stage has not happened."""
    wanted = stages(shot)[number]
    return (wanted.switch and not state.switched) or unapproved(shot, number)


def unapproved(shot: Snapshot, number: int) -> bool:
    """Whether a stage waits for a person's word."""
    return stages(shot)[number].approve and shot.rollout.approved <= number


def last(shot: Snapshot) -> bool:
    """Whether the present stage is the last one."""
    return stage(shot) == len(stages(shot)) - 1


def spread(shot: Snapshot) -> tuple[Part, bool]:
    """On how many nodes the new version shall run now, or on which share of them, as the policy says it, so
    that nodes which join get the version of their share; and whether pods stay as they are.
    """
    state = shot.state
    if state is None or state.back or shot.spread is None:
        return 0, False
    if state.phase == "halted":
        return shot.spread[0], True
    _, target = shot.sides
    if target.outdated:  # one at first, then all in place of a superseded version, and then the stages
        own = len(target.own)
        return own + len(target.outdated) if target.available else max(1, own), False
    if last(shot):
        return "100%", False
    total, wanted = shot.rollout.replicas, goal(shot).new
    said = (staged(each).to for each in shot.rollout.policy.stages)
    return next((to for to in said if at_least(to, total) == wanted), wanted), False


@once
def complete(shot: Snapshot) -> bool:
    """Whether enough pods of the side that grows are available."""
    _, target = shot.sides
    if target.outdated:
        return False
    if not (shot.back or shot.rollout.policy.require_healthy_end) and last(shot):
        return True
    tolerated = at_most(shot.rollout.policy.tolerate, shot.rollout.replicas)
    return target.settled + target.waived + tolerated >= target.desired


# When a rollout fails, and what follows: it goes back, or halts until people say what to do: pure.
#
# What must never break: only a new version that is known to fail turns a rollout back. What nobody knows
# of, and a want of room, halt it.

BACK = "; on the way back: "


def progressed(shot: Snapshot) -> float:
    """When it made progress last: every change of its pods and each success is progress.

    What holds it from outside is none: the time before that counts once it goes on.
    """
    _, target = shot.sides
    began = shot.state.since - shot.state.idle if shot.state is not None else shot.now
    newest = max((state.pod.record.at for state in target.pods.values()), default=0.0)
    return max(began, newest, shot.risen)


def deadline(shot: Snapshot) -> float:
    """When the rollout fails if it makes no progress, or if its new pods stay unhealthy."""
    sick = unhealthy_until(shot)
    stuck = progressed(shot) + shot.rollout.policy.progress_deadline
    return stuck if sick is None else min(stuck, sick)


@once
def unhealthy_until(shot: Snapshot) -> float | None:
    """When the new version fails because its nodes call more pods unhealthy than need not be available; None:
    it does not."""
    state, policy, side = shot.state, shot.rollout.policy, shot.new
    if not policy.health_deadline or shot.back or state is None or side is None:
        return None
    if not policy.require_healthy_end and last(shot):
        return None
    began = state.since - state.idle
    sick = map(sick_since, side.own.values())
    ends = sorted(max(began, at) + policy.health_deadline for at in sick if at is not None)
    tolerated = at_most(policy.tolerate, shot.rollout.replicas)
    return ends[tolerated] if tolerated < len(ends) else None


def overdue_at(shot: Snapshot, complete: bool) -> float:
    """When the rollout fails unless it makes progress; 0: it is not waiting for pods."""
    state = shot.state
    if state is None or state.phase == "halted" or (state.phase == "baking" and complete):
        return 0.0
    return deadline(shot)


def due(shot: Snapshot) -> float:
    """Seconds until time alone changes what there is to do."""
    times = [deadline(shot)]
    if shot.rollout.policy.deadline and not shot.back:
        times.append(shot.rollout.at + shot.rollout.policy.deadline)
    for side in shot.sides:
        if (wait := settling(side.pods.values())) is not None:
            times.append(shot.now + wait)
        stops = (replaceable_at(state, side.rc.on_lost, side.stop_after) for state in side.pods.values())
        times += [at for at in stops if at is not None]
    return min(at for at in times if at > shot.now) - shot.now


def fault(shot: Snapshot, complete: bool) -> Plan | None:
    """The new version fails, or nothing goes on for too long; ``complete``: all that came are available."""
    state, policy = shot.state, shot.rollout.policy
    assert state is not None
    _, target = shot.sides
    if state.phase == "baking" and complete:
        return None
    over = policy.deadline and shot.now >= shot.rollout.at + policy.deadline and not shot.back
    if shot.now < deadline(shot) and not over:
        return None
    sick = unhealthy_until(shot)
    limit = f"{policy.deadline:g} s in all" if over else f"{policy.progress_deadline:g} s without progress"
    if sick is not None and sick <= min(shot.now, progressed(shot) + policy.progress_deadline):
        limit = f"{policy.health_deadline:g} s unhealthy"
    failing = _failing(target)
    if failing:
        return failed(shot, state, f"{limit}: {failing}")
    return stuck(shot, state, f"{limit}: no pod that came is at fault")


def refuted(shot: Snapshot, state: RolloutState, gates: Sequence[Gate]) -> Plan | None:
    """A gate says that the new version is bad."""
    cause = "" if shot.back else judgement.failed(gates, shot.gates)
    return failed(shot, state, cause) if cause else None


def failed(shot: Snapshot, state: RolloutState, cause: str) -> Plan:
    """The new version is at fault."""
    if shot.rollout.policy.on_failure == "revert" and not shot.back:
        return turn_back(shot, cause)
    return stuck(shot, state, cause)


def stuck(shot: Snapshot, state: RolloutState, cause: str) -> Plan:
    if shot.back and state.cause:
        cause = f"{state.cause.partition(BACK)[0]}{BACK}{cause}"
    halted = replace(
        state,
        phase="halted",
        since=shot.now,
        cause=cause,
        resumed=shot.rollout.resumed,
        fault=True,
        idle=0.0,
    )
    return Plan(turn=Turn("halt", halted, cause), fault=cause)


def how(side: Side, place: Place) -> str:
    """A pod that is not available, and how it is: ``n7/web starting``."""
    state, name = side.pods[place], "/".join(place)
    seen = state.reality
    if state.absent or state.lost is not None:
        return f"{name} on an absent node"
    if seen is None or state.intent is None or seen.intent < state.intent.index:
        return f"{name} starting"
    if state.healthy:
        return f"{name} settling"
    return f"{name} not healthy" if seen.phase == "running" else f"{name} {seen.phase}"


def _failing(side: Side) -> str:
    """A pod that its node reports as not serving. A pod with an unknown state is no proof of failure."""
    found = sorted(place for place, state in side.own.items() if _acted(state) and not state.available)
    if not found:
        return ""
    return f"{len(found)} of {side.desired} pods do not stay available: {how(side, found[0])}"


def _acted(state: PodState) -> bool:
    if state.absent or state.lost is not None or state.reality is None or state.intent is None:
        return False
    return state.reality.intent >= state.intent.index


def turn_back(shot: Snapshot, cause: str) -> Plan:
    """Back to the old version, at once and for good."""
    number = shot.state.stage if shot.state is not None else 0
    switched = shot.state is not None and shot.state.switched
    state = RolloutState(
        phase="moving",
        back=True,
        stage=number,
        since=shot.now,
        cause=cause,
        switched=switched,
        superseded=len(shot.rollout.superseded),
    )
    return Plan(turn=Turn("back", state, cause), fault=cause if not shot.rollout.wish else "")
