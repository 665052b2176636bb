"""The goals of a rollout are computed once, however often and of how many pods a decision asks for them."""

from __future__ import annotations

import msgspec
import pytest

from farmd.rollout import stages
from farmd.rollout.simulate import simulate
from farmd.rollout.stages import StageGoal, goals
from tests.rollout_worlds import NEW, OLD, controller, rollout

PACED = {"stages": [], "ratio": 1}


def test_a_dry_run_of_a_hundred_stages_computes_the_goals_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def goal(*told: object, **fields: object) -> StageGoal:
        made.append(told)
        return StageGoal(*told, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(stages, "StageGoal", goal)
    assert (
        len(simulate(rollout(203, 202, policy=PACED), controller(OLD, 203), controller(NEW, 0)).stages) == 100
    )
    assert len(made) == 100


def test_a_rollout_that_is_scaled_has_other_goals() -> None:
    before = rollout(10, 8, policy={"stages": ["50%", "100%"]})
    after = msgspec.structs.replace(before, replicas=20, started_from=20)
    assert [goal.new for goal in goals(before, 8)] == [5, 10]
    assert [goal.new for goal in goals(after, 8)] == [10, 20]
    assert [goal.old for goal in goals(before, 9)] == [5, 0] == [goal.old for goal in goals(before, 0)]
