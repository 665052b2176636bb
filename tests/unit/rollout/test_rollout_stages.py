"""From a policy to the goals of its stages, its floor and its ceiling; and the policies that are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd import kinds
from farmd.commands.specs import check_policy
from farmd.rollout.stages import ceiling, check, goals, minimum, unrested
from store import rcs, rollouts
from store.errors import InputInvalid
from store.policies import Policy, Stage, staged
from tests.rollout_worlds import rollout

RATIO = {"stages": [], "minimum": None}
GOALS = [
    (10, 10, {"strategy": "rolling", "ratio": 30, **RATIO}, 9, [(3, 7), (6, 4), (9, 1), (10, 0)], 10),
    (10, 4, {"strategy": "rolling", "ratio": 25, **RATIO}, 9, [(2, 4), (5, 4), (7, 2), (10, 0)], 10),
    (10, 10, {"strategy": "availability", "ratio": 50, **RATIO}, 10, [(5, 5), (10, 0)], 15),
    (10, 10, {"strategy": "availability", **RATIO}, 10, [(1, 9), (10, 0)], 19),
    (10, 10, {"strategy": "availability", "tolerate": "10%", **RATIO}, 9, [(1, 9), (10, 0)], 19),
    (8, 8, {"strategy": "availability", "ratio": 10, **RATIO}, 8, [(n, 8 - n) for n in range(1, 9)], 9),
    (
        10,
        10,
        {"strategy": "resourceutil", "ratio": 20, **RATIO},
        8,
        [(n, 10 - n) for n in (2, 4, 6, 8, 10)],
        10,
    ),
    (10, 10, {"strategy": "resourceutil", **RATIO}, 1, [(1, 9), (10, 0)], 10),
    (10, 20, {"strategy": "resourceutil", **RATIO}, 1, [(1, 18), (10, 0)], 20),
    (10, 10, {"strategy": "blue-green", **RATIO}, 10, [(10, 10), (10, 0)], 20),
    (
        10,
        4,
        {"strategy": "blue-green", "minimum": None, "stages": [2, "100%"]},
        10,
        [(2, 4), (10, 4), (10, 0)],
        14,
    ),
]


@pytest.mark.parametrize(("total", "began", "policy", "floor", "expected", "most"), GOALS)
def test_goals(
    total: int, began: int, policy: dict[str, Any], floor: int, expected: list[tuple[int, int]], most: int
) -> None:
    begun = rollout(total, 0, began=began, policy=policy)
    found = goals(begun, minimum(begun))
    assert minimum(begun) == floor
    assert [(goal.new, goal.old) for goal in found] == expected
    assert ceiling(begun, found) == most


def test_blue_green_waits_for_the_word_before_the_switch_and_not_before_the_new_pods() -> None:
    stages = [Stage(to="100%", bake=60.0, approve=True)]
    begun = rollout(3, 0, policy={"strategy": "blue-green", "minimum": None, "stages": stages})
    filled, switched = goals(begun, minimum(begun))
    assert (filled.bake, filled.approve, filled.switch) == (60.0, False, False)
    assert (switched.bake, switched.approve, switched.switch) == (0.0, True, True)


REFUSED = [
    (
        {"strategy": "availability", "minimum": 11},
        "rollout.minimum: found 11 of 10, expected at most 10: nothing could ever leave",
    ),
    (
        {"strategy": "resourceutil", "minimum": 10},
        "rollout.minimum: found 10 of 10, expected less: nothing could ever leave",
    ),
    ({"ratio": 10, "stages": [1, "100%"]}, "rollout.ratio: found 10 beside stages, expected one of both"),
    (
        {"strategy": "blue-green", "minimum": None},
        "rollout.service: found none, expected one that names the controller, for blue-green to switch",
    ),
    (
        {"strategy": "blue-green", "minimum": None, "deadline": 60.0, "keep_old": 90.0},
        "rollout.deadline: found 60 s, and 90 s of rests, expected more than all rests together",
    ),
]


@pytest.mark.parametrize(("policy", "text"), REFUSED)
def test_a_policy_that_cannot_work_is_refused(policy: dict[str, Any], text: str) -> None:
    service = "" if "service" in text else "77aa"
    with pytest.raises(InputInvalid) as refused:
        check(rollout(10, 0, policy=policy, service=service))
    assert refused.value.message == text


def test_r11_farms_of_this_version_know_what_records_may_need() -> None:
    assert {rollouts.MANAGED, rollouts.STAGED, rcs.NUMBERED} <= set(kinds.features())


def test_a_way_back_after_the_end_keeps_the_pace_and_neither_rests_nor_asks() -> None:
    stages: list[Stage | int | str] = [Stage(to=2, bake=9.0), Stage(to="100%", approve=True)]
    assert unrested(Policy(stages=stages)) == Policy(stages=["100%"])
    assert unrested(Policy(ratio=5)) == Policy(stages=["100%"])
    policy = Policy(strategy="resourceutil", stages=stages)
    assert unrested(policy) == Policy(strategy="resourceutil", stages=[2, "100%"])
    assert unrested(Policy(strategy="availability", ratio=5)).ratio == 5


@pytest.mark.parametrize("strategy", ["rolling", "availability"])
def test_a_rollback_is_held_by_no_gate_which_what_it_leaves_would_fail(strategy: str) -> None:
    gate = {"name": "errors", "http": "http://gate.test/"}
    stages = [{"to": 1, "bake": 60, "gates": ["errors"]}, {"to": "100%", "approve": True}]
    policy = msgspec.convert({"strategy": strategy, "stages": stages, "gates": [gate]}, Policy)
    found = unrested(policy)
    assert found.gates == []
    assert all(staged(stage) == Stage(to=staged(stage).to) for stage in found.stages)
    check_policy(found, "rollout")
