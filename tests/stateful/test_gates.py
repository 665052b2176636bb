"""Rollouts behind gates on virtual time: hours without data, hand-overs, and what is written meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farmd.rollout import commands
from farmd.rollout.judgement import GateAnswer, Result
from store.policies import Gate
from store.rollouts import KIND
from tests.stateful.fleet import KEYS
from tests.stateful.rolling import REPLICAS, Rolling
from tests.stateful.scene import Scene

WORDS: dict[Result, str] = {"pass": "0.1 <= 0.5", "fail": "0.9 > 0.5", "none": "Prometheus is down"}
ERRORS = {"name": "errors", "prometheus": "errs", "max": 0.5}


class Oracle:
    """Answers every gate of every farm as the test says, and counts."""

    def __init__(self, scene: Scene) -> None:
        self.result: Result | Callable[[], Result] = "pass"
        self.asked = 0
        for farm in scene.farms.values():
            farm.ask = self.ask

    async def ask(self, _: Gate) -> GateAnswer:
        self.asked += 1
        result = self.result() if callable(self.result) else self.result
        return GateAnswer(result, WORDS[result])


@pytest.fixture
def oracle(scene: Scene) -> Oracle:
    return Oracle(scene)


@pytest.fixture
def rolling(scene: Scene, oracle: Oracle) -> Rolling:
    return Rolling(scene)


def firing(rolling: Rolling) -> set[str]:
    return {key for farm in rolling.scene.farms.values() for key in farm.inbox.firing}


def begin(rolling: Rolling, **policy: Any) -> str:
    told = {"stages": [{"to": 2, "gates": ["errors"]}, "100%"], "gates": [ERRORS], **policy}
    return rolling.begin(**told).id


@pytest.mark.whole
def test_a_prometheus_that_is_down_for_an_hour_costs_an_hour(rolling: Rolling, oracle: Oracle) -> None:
    oracle.result = "none"
    ident = begin(rolling, progress_deadline=7200)
    rolling.scene.advance(3600.0)
    status = rolling.said(ident)
    assert (status.phase, status.new.available) == ("baking", 2)
    assert status.reason == "stage 1 is reached; gate errors passed 0 of 3: Prometheus is down"
    assert status.gates[0].result == "none"
    assert firing(rolling) == set()
    oracle.result = "pass"
    rolling.until(lambda: rolling.ended)
    rolling.whole("done")


def test_no_data_for_the_deadline_halts_it_with_an_alert_and_a_resume_asks_again(
    rolling: Rolling, oracle: Oracle
) -> None:
    oracle.result = "none"
    ident = begin(rolling, progress_deadline=600)
    rolling.scene.advance(700.0)
    status = rolling.said(ident)
    assert (status.phase, status.old.available, status.new.available) == ("halted", REPLICAS - 2, 2)
    assert "gate errors has had no data for 600 s: Prometheus is down" in status.reason
    assert firing(rolling) == {"rollout_web"}
    asked = oracle.asked
    rolling.scene.advance(600.0)
    assert oracle.asked == asked  # nobody waits for it now
    oracle.result = "pass"
    rolling.ask(lambda: commands.resume(rolling.scene.call, "web"))
    rolling.until(lambda: rolling.ended)
    rolling.whole("done")
    assert firing(rolling) == set()


def test_a_gate_that_fails_late_in_a_rest_turns_it_back(rolling: Rolling, oracle: Oracle) -> None:
    ident = begin(rolling, stages=[{"to": 2, "bake": 900, "gates": ["errors"]}, "100%"])
    rolling.scene.advance(800.0)
    assert rolling.said(ident).phase == "baking"
    oracle.result = "fail"
    rolling.until(lambda: rolling.ended)
    rolling.whole("reverted")
    rolling.until(lambda: firing(rolling) == {"rollout_web"})


def test_answers_that_say_the_same_are_written_now_and_then_only(rolling: Rolling, oracle: Oracle) -> None:
    ident = begin(rolling, stages=[{"to": 2, "bake": 7200, "gates": ["errors"]}, "100%"])
    rolling.until(lambda: rolling.said(ident).gates and rolling.said(ident).gates[0].passes == 3)
    key, began, asked = KEYS.status(KIND, ident), rolling.said(ident).gates[0].at, oracle.asked
    before = rolling.scene.read(key)
    rolling.scene.advance(50.0)
    after = rolling.scene.read(key)
    assert (oracle.asked - asked >= 4, after.modify_index) == (True, before.modify_index)
    rolling.scene.advance(600.0)
    assert rolling.said(ident).gates[0].at > began + 500  # but the last answer is told


def test_w13_a_farm_that_takes_over_counts_anew_and_comes_to_the_same_end(
    rolling: Rolling, oracle: Oracle
) -> None:
    ident = begin(rolling, gates=[ERRORS | {"passes": 6}])
    rolling.until(lambda: rolling.said(ident).gates and rolling.said(ident).gates[0].passes == 5)
    owner = rolling.said(ident).farm
    asked = oracle.asked
    rolling.scene.run(rolling.scene.farms[owner].kill())
    rolling.until(lambda: rolling.ended)
    rolling.whole("done")
    assert oracle.asked - asked >= 6


def test_a_failing_gate_is_no_matter_to_a_paused_rollout_until_it_goes_on(
    rolling: Rolling, oracle: Oracle
) -> None:
    ident = begin(rolling, stages=[{"to": 2, "bake": 600, "gates": ["errors"]}, "100%"])
    rolling.until(lambda: rolling.said(ident).phase == "baking")
    rolling.ask(lambda: commands.pause(rolling.scene.call, "web"))
    oracle.result = "fail"
    rolling.scene.advance(120.0)
    assert (rolling.ended, rolling.said(ident).new.available) == ([], 2)
    rolling.ask(lambda: commands.resume(rolling.scene.call, "web"))
    rolling.until(lambda: rolling.ended)
    rolling.whole("reverted")
