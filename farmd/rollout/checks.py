"""What a policy must say so that a rollout can end: pure; each refusal is one line."""

from __future__ import annotations

from itertools import pairwise

from farmd.rollout.stages import minimum, staged
from store.errors import InputInvalid
from store.policies import at_least
from store.rollouts import Rollout

MOST_STAGES = 20


def check(rollout: Rollout) -> None:
    """Refuse a rollout that could never end.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    total = rollout.replicas
    if rollout.from_manifest == rollout.to_manifest:
        _refuse("to", "the version that it has already", "another one")
    check_floor(rollout)
    stages = [staged(stage) for stage in rollout.policy.stages]
    if len(stages) > MOST_STAGES:
        _refuse("stages", f"{len(stages)}", f"at most {MOST_STAGES}")
    counts = [at_least(stage.to, total) for stage in stages]
    for number, (before, after) in enumerate(pairwise(counts), 1):
        if after < before:
            _refuse(f"stages[{number}].to", f"{after} after {before}", "a rising number of replicas")
    if counts and counts[-1] != total:
        _refuse(f"stages[{len(stages) - 1}].to", f"{stages[-1].to}", f"100% or {total}, which is all")
    bakes = sum(stage.bake for stage in stages)
    if 0 < rollout.policy.deadline < bakes:
        found = f"{rollout.policy.deadline:g} s, and {bakes:g} s of rests"
        _refuse("deadline", found, "more than all rests together")


def check_floor(rollout: Rollout) -> None:
    """Refuse a floor that lets nothing leave.

    Raises:
        InputInvalid: naming what was found.
    """
    floor, total = minimum(rollout), rollout.replicas
    if floor >= total and rollout.started_from:
        _refuse("minimum", f"{floor} of {total}", "less: nothing could ever leave")


def _refuse(field: str, found: str, expected: str) -> None:
    raise InputInvalid(f"rollout.{field}: found {found}, expected {expected}", field=f"rollout.{field}")
