"""From a policy to goals: how many pods each side shall have at the end of each stage: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import msgspec

from farmd.commands.specs import check_policy
from farmd.rollout.staging import paced
from store import codec
from store.errors import refuse
from store.policies import Gate, Policy, Stage, at_least, at_most, staged
from store.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class StageGoal:
    """The counts at a stage's end, its rest (seconds), and the gates that hold for it.

    ``approve``: it waits for a word to begin. ``switch``: it begins with the switch of the service, and the
    old pods go ``keep_old`` seconds later.
    """

    new: int
    old: int
    bake: float = 0.0
    approve: bool = False
    switch: bool = False
    gates: tuple[Gate, ...] = ()

    @property
    def rests(self) -> bool:
        """Whether it is given time, or gates are waited for, once it is reached."""
        return self.bake > 0 or bool(self.gates)


def minimum(rollout: Rollout) -> int:
    """The number of pods of both sides that stay available; without a setting, what the strategy permits.

    Where new pods come first, that is all but those that need not be available; where old pods go first, all
    but those of the largest stage; where they take one another's places, all but one.
    """
    policy, total = rollout.policy, rollout.replicas
    if policy.minimum is not None:
        return at_least(policy.minimum, total)
    if policy.beside:
        return total - at_most(policy.tolerate, total)
    if policy.strategy == "resourceutil":
        return total - max(
            after - before for before, after in pairwise([rollout.started_to, *steps(rollout)])
        )
    return total - 1


def stages(policy: Policy) -> list[Stage]:
    """The stages of a policy without a ratio: as people wrote them, or one pod and then all."""
    default: list[Stage | int | str] = ["100%"] if policy.strategy == "blue-green" else [1, "100%"]
    return [staged(stage) for stage in policy.stages or default]


def unrested(policy: Policy) -> Policy:
    """The policy without rests, words and gates, which look at the new version: what runs while it leaves
    would fail them. Its stages stay where they are its pace, not only a look at it.
    """
    policy = msgspec.structs.replace(policy, gates=[])
    if policy.strategy == "rolling":
        return msgspec.structs.replace(policy, stages=["100%"], ratio=None)
    return msgspec.structs.replace(policy, stages=[stage.to for stage in map(staged, policy.stages)])


def steps(rollout: Rollout) -> dict[int, Stage]:
    """How many pods are new in the end of each stage, and the stage; the last one is the whole."""
    policy, total = rollout.policy, rollout.replicas
    if policy.ratio is not None:
        wanted = [Stage(to=new) for new in paced(rollout.started_from, total, policy.ratio)]
    else:
        wanted = stages(policy)
    *before, last = wanted
    found = {min(total, at_least(stage.to, total)): stage for stage in before}
    return {new: found[new] for new in found if rollout.started_to < new < total} | {total: last}


@dataclass(frozen=True, slots=True)
class _Way:
    """A rollout that is equal to each rollout with the same stages: the key of a cache."""

    told: bytes
    rollout: Rollout = field(compare=False)


def goals(rollout: Rollout, floor: int) -> tuple[StageGoal, ...]:
    """The goals of all stages; the last one is the end. Stages with equal goals are one.

    No goal lies below the floor: the old side keeps what the new one cannot replace yet. A rollout that
    switches a service keeps the whole old side until then.
    """
    counts = rollout.replicas, rollout.started_from, rollout.started_to
    return _goals(_Way(codec.encode((rollout.policy, *counts)), rollout), floor)


@lru_cache(maxsize=256)
def _goals(way: _Way, floor: int) -> tuple[StageGoal, ...]:
    """A decision asks for them some twenty times, and there may be a hundred."""
    rollout = way.rollout
    total, began, policy = rollout.replicas, rollout.started_from, rollout.policy
    kept = max(0, began - (total - rollout.started_to)) if policy.leave_old else 0
    switch, found = policy.strategy == "blue-green", list[StageGoal]()
    for new, stage in steps(rollout).items():
        whole = new == total
        old = kept if whole and not switch else _beside(rollout, new, floor)
        approve, gates = stage.approve and not (whole and switch), _held(policy, stage)
        found.append(StageGoal(new, old, stage.bake, approve, gates=gates))
    if switch:
        found.append(StageGoal(total, kept, approve=stage.approve, switch=True))
    return tuple(found)


def _held(policy: Policy, stage: Stage) -> tuple[Gate, ...]:
    """The gates that hold for a stage: those that it names, and those that no stage names."""
    named = {name for each in policy.stages for name in staged(each).gates}
    return tuple(gate for gate in policy.gates if gate.name in stage.gates or gate.name not in named)


def ceiling(rollout: Rollout, wanted: Sequence[StageGoal]) -> int:
    """The most pods of both sides together, by their counts."""
    most = max(rollout.replicas, rollout.started_from + rollout.started_to)
    if not rollout.policy.beside:
        return most
    before = [rollout.started_from, *(goal.old for goal in wanted)]
    return max(most, *(goal.new + old for goal, old in zip(wanted, before, strict=False)))


def raised(rollout: Rollout, goal: StageGoal, new: int, floor: int) -> StageGoal:
    """The goal of a stage that has this many new pods already: after a scale it may ask for fewer."""
    if goal.new >= min(new, rollout.replicas):
        return goal
    new = min(new, rollout.replicas)
    return replace(goal, new=new, old=_beside(rollout, new, floor))


def _beside(rollout: Rollout, new: int, floor: int) -> int:
    """How many old pods there are to be beside so many new ones."""
    began, total = rollout.started_from, rollout.replicas
    if rollout.policy.strategy == "blue-green":
        return began
    return min(began, max(math.ceil(began * (total - new) / total), floor - new))


def turning_back(rollout: Rollout) -> StageGoal:
    """The goal of the way back: everything as it began."""
    return StageGoal(0 if rollout.created_new else rollout.started_to, rollout.started_from)


# What a policy must say so that a rollout can end: pure; each refusal is one line.


def check(rollout: Rollout, min_healthy_time: float = 0.0) -> None:
    """Refuse a rollout that could never end; its new controller's ``min_healthy_time`` is in seconds.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    policy, total = rollout.policy, rollout.replicas
    check_policy(policy, "rollout")
    if rollout.from_manifest == rollout.to_manifest:
        _refuse("to", "the version that it has already", "another one")
    check_floor(rollout)
    if policy.strategy == "blue-green" and not rollout.service:
        _refuse("service", "none", "one that names the controller, for blue-green to switch")
    _check_stages(policy, total)
    settles = min_healthy_time if policy.min_healthy_time is None else policy.min_healthy_time
    if policy.progress_deadline <= settles:
        found = f"{policy.progress_deadline:g} s"
        _refuse("progress_deadline", found, f"more than min_healthy_time, which is {settles:g} s")


def _check_stages(policy: Policy, total: int) -> None:
    stages = [staged(stage) for stage in policy.stages]
    counts = [at_least(stage.to, total) for stage in stages]
    for number, (before, after) in enumerate(pairwise(counts), 1):
        if after < before:
            _refuse(f"stages[{number}].to", f"{after} after {before}", "a rising number of replicas")
    if counts and counts[-1] != total:
        _refuse(f"stages[{len(stages) - 1}].to", f"{stages[-1].to}", f"100% or {total}, which is all")


def check_floor(rollout: Rollout) -> None:
    """Refuse a floor that lets nothing leave.

    Raises:
        InputInvalid: naming what was found.
    """
    floor, total = minimum(rollout), rollout.replicas
    if rollout.policy.beside:
        if floor > total:
            _refuse("minimum", f"{floor} of {total}", f"at most {total}: nothing could ever leave")
    elif floor >= total and rollout.started_from:
        _refuse("minimum", f"{floor} of {total}", "less: nothing could ever leave")


def _refuse(field: str, found: str, expected: str) -> None:
    refuse(f"rollout.{field}", found, expected)
