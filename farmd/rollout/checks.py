"""What a policy must say so that a rollout can end: pure; each refusal is one line."""

from __future__ import annotations

from itertools import pairwise

from farmd.commands.specs import check_policy
from farmd.rollout.stages import minimum
from store.errors import refuse
from store.policies import Policy, at_least, staged
from store.rollouts import Rollout


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
