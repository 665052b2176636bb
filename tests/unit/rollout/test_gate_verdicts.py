"""Gates: what passes, fails and tells nothing, and what a rollout does then."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.rollout.facts import Plan
from farmd.rollout.judgement import GateAnswer, GateJudgement, NoData, failed, judged, limits, pending, value
from farmd.rollout.stages import check
from store.errors import InputInvalid
from store.policies import Gate, Stage
from store.rollouts import RolloutState
from tests.effort import tries
from tests.rollout_worlds import NEW, NOW, World, on, rollout

ERRORS = Gate(name="errors", prometheus="errs", max=0.5)
SMOKE = Gate(name="smoke", http="http://web/ok", passes=1, failures=1)
PASS, FAIL, NONE = (
    GateAnswer("pass", "0.1 <= 0.5"),
    GateAnswer("fail", "0.7 > 0.5"),
    GateAnswer("none", "no series"),
)


def after(gate: Gate, *answers: GateAnswer, every: float = 10.0) -> GateJudgement:
    standing = GateJudgement(began=NOW, heard=NOW)
    for number, answer in enumerate(answers, 1):
        standing = standing.after(gate, answer, NOW + number * every)
    return standing


# -- answers ------------------------------------------------------------------------------------
def test_a_verdict_needs_answers_in_a_row() -> None:
    assert pending([ERRORS], {"errors": after(ERRORS, PASS, PASS)}) == "gate errors passed 2 of 3: 0.1 <= 0.5"
    assert pending([ERRORS], {"errors": after(ERRORS, PASS, PASS, FAIL, PASS)}) != ""
    assert pending([ERRORS], {"errors": after(ERRORS, PASS, PASS, PASS)}) == ""
    assert failed([ERRORS], {"errors": after(ERRORS, FAIL, FAIL, PASS, FAIL)}) == ""
    told = "gate errors failed 3 times in a row: 0.7 > 0.5"
    assert failed([ERRORS], {"errors": after(ERRORS, PASS, FAIL, FAIL, FAIL)}) == told
    assert failed([SMOKE], {"smoke": after(SMOKE, FAIL)}) == "gate smoke failed once: 0.7 > 0.5"


@given(st.lists(st.sampled_from([PASS, FAIL, NONE])))
def test_no_data_is_neither_pass_nor_failure(answers: list[GateAnswer]) -> None:
    heard = [answer for answer in answers if answer.result != "none"]
    found, other = after(ERRORS, *answers), after(ERRORS, *heard)
    assert (found.passes, found.failures) == (other.passes, other.failures)


def test_what_no_gate_says_is_waited_for_no_longer_than_the_deadline() -> None:
    silent = {"errors": after(ERRORS, PASS, NONE)}
    (first, *_) = limits([ERRORS], silent, NOW, 0.0, 600.0)
    assert first == (NOW + 600, "gate errors has not passed 3 times in a row within 600 s: no series")
    (first, *_) = limits([ERRORS], silent, NOW, 3600.0, 600.0)
    assert first == (NOW + 10 + 600, "gate errors has had no data for 600 s: no series")
    assert limits([ERRORS], {"errors": after(ERRORS, PASS, PASS, PASS)}, NOW, 0.0, 600.0) == []


# -- Prometheus ---------------------------------------------------------------------------------
def vector(*values: str) -> bytes:
    result = [{"metric": {"job": "web"}, "value": [1.5, each]} for each in values]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_one_number_is_data() -> None:
    scalar = b'{"status":"success","data":{"resultType":"scalar","result":[1.5,"0.25"]}}'
    assert value(200, scalar) == 0.25
    assert value(200, vector("3")) == 3
    assert value(200, vector("+Inf")) == math.inf


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, vector(), "Prometheus: found no series, expected one"),
        (200, vector("1", "2"), "Prometheus: found 2 series, expected one"),
        (200, vector("NaN"), "Prometheus: found NaN, expected a number"),
        (200, vector("many"), "Prometheus: its answer has no number"),
        (400, b'{"status":"error","errorType":"bad_data","error":"parse error"}', "Prometheus: parse error"),
        (503, b"<html>busy</html>", "Prometheus: HTTP 503, not its JSON"),
        (200, b'{"status":"success"}', "Prometheus: found a nameless result, expected a number"),
        (
            200,
            b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
            "Prometheus: found a matrix result, expected a number",
        ),
        (
            200,
            b'{"status":"success","data":{"resultType":"vector","result":{}}}',
            "Prometheus: its answer has no number",
        ),
        (
            200,
            b'{"status":"success","data":{"resultType":"scalar","result":null}}',
            "Prometheus: its answer has no number",
        ),
        (
            200,
            b'{"status":"success","data":{"resultType":"scalar","result":[1,' + b"9" * 400 + b"]}}",
            "Prometheus: its answer has no number",
        ),
        (200, b"\xff", "Prometheus: HTTP 200, not its JSON"),
        (200, b'{"data":{"result":' + b"[" * 5000, "Prometheus: HTTP 200, not its JSON"),
    ],
)
def test_all_else_is_no_data(status: int, body: bytes, told: str) -> None:
    with pytest.raises(NoData) as found:
        value(status, body)
    assert str(found.value) == told


@pytest.mark.parametrize(
    ("gate", "number", "answer"),
    [
        (ERRORS, 0.5, GateAnswer("pass", "0.5 <= 0.5")),
        (ERRORS, 0.5001, GateAnswer("fail", "0.5001 > 0.5")),
        (ERRORS, math.inf, GateAnswer("fail", "inf > 0.5")),
        (Gate(name="up", prometheus="up", min=1), 0.0, GateAnswer("fail", "0 < 1")),
        (Gate(name="up", prometheus="up", min=1, max=2), 1.0, GateAnswer("pass", "1 <= 1 <= 2")),
    ],
)
def test_a_number_is_judged_by_both_limits(gate: Gate, number: float, answer: GateAnswer) -> None:
    assert judged(gate, number) == answer


# -- what a rollout does ------------------------------------------------------------------------
def world(*stages: Any, gates: tuple[Gate, ...] = (ERRORS,), **policy: Any) -> World:
    return World(rollout(4, 3, policy={"stages": list(stages), "gates": list(gates), **policy}), on(4))


def reach(found: World, **fields: Any) -> Plan:
    """Go on until nothing moves; the last plan."""
    for _ in range(100):
        plan = found.step(**fields)
        if found.outcome:
            return plan
        if found.ending:
            found.ending.clear()
            continue
        if plan.turn is None and not plan.moves.moves:
            pods = [*found.old.values(), *found.new.values()]
            if all(state.reality is not None for state in pods):
                return plan
            found.settle()
    raise AssertionError("it does not come to rest")


def says(*answers: GateAnswer, gate: Gate = ERRORS) -> dict[str, Any]:
    return {"gates": {gate.name: after(gate, *answers)}}


def test_a_stage_waits_for_its_gates_and_says_for_which() -> None:
    found = world(Stage(to=2, gates=["errors"]), "100%")
    plan = reach(found, **says(PASS))
    assert (len(found.new), found.state.phase) == (2, "baking")  # type: ignore[union-attr]
    assert plan.waiting == "stage 1 is reached; gate errors passed 1 of 3: 0.1 <= 0.5"
    reach(found, **says(PASS, PASS, PASS))
    assert (found.outcome, len(found.new)) == ("done", 4)  # the last stage does not name the gate


def test_a_gate_that_no_stage_names_holds_for_all_also_for_the_last() -> None:
    found = world("100%")
    plan = reach(found, **says(PASS, NONE))
    assert (found.outcome, len(found.new)) == ("", 4)
    assert plan.waiting == "stage 1 is reached; gate errors passed 1 of 3: no series"
    reach(found, **says(PASS, PASS, PASS))
    assert found.outcome == "done"


def test_the_last_stage_rests_too() -> None:
    found = world(Stage(to="100%", bake=30.0), gates=())
    assert (reach(found).waiting, found.outcome) == ("stage 1 is reached and rests", "")
    found.now += 31
    reach(found)
    assert found.outcome == "done"


@pytest.mark.parametrize("phase", ["moving", "baking"])
def test_a_gate_that_fails_turns_it_back_in_any_phase(phase: str) -> None:
    found = world(Stage(to=2, bake=600.0), "100%")
    if phase == "baking":
        reach(found, **says(PASS))
    else:
        found.step()
        found.step()
    assert found.state.phase == phase  # type: ignore[union-attr]
    plan = found.step(**says(PASS, FAIL, FAIL, FAIL))
    told = "gate errors failed 3 times in a row: 0.7 > 0.5"
    assert (plan.turn.action, plan.turn.reason, plan.fault) == ("back", told, told)  # type: ignore[union-attr]
    reach(found, **says(FAIL, FAIL, FAIL))
    assert (found.outcome, len(found.old), len(found.new)) == ("reverted", 4, 0)


def test_a_gate_that_fails_halts_it_where_people_said_so() -> None:
    found = world(1, "100%", on_failure="pause")
    plan = reach(found, **says(FAIL, FAIL, FAIL))
    assert found.state.phase == "halted"  # type: ignore[union-attr]
    assert plan.fault == "gate errors failed 3 times in a row: 0.7 > 0.5"


def test_an_approval_never_outvotes_a_gate() -> None:
    found = world(2, Stage(to="100%", approve=True))
    found.rollout = msgspec.structs.replace(found.rollout, approved=2)
    assert "gate errors passed 1 of 3" in reach(found, **says(PASS)).waiting
    assert found.step(**says(FAIL, FAIL, FAIL)).turn.action == "back"  # type: ignore[union-attr]


@pytest.mark.parametrize("answers", [[NONE], [PASS, FAIL, PASS], [PASS, NONE]])
def test_a_gate_without_a_verdict_halts_it_and_never_turns_it_back(answers: list[GateAnswer]) -> None:
    found = world(1, "100%")
    plan = reach(found, **says(*answers))
    assert plan.after == 600
    found.now += 630
    plan = found.step(**says(*answers))
    assert plan.turn is not None
    assert (plan.turn.action, plan.turn.state.phase, plan.turn.state.fault) == ("halt", "halted", True)  # type: ignore[union-attr]
    assert "gate errors has" in plan.fault
    found.rollout = msgspec.structs.replace(found.rollout, resumed=1)
    assert found.step().turn.action == "take"  # type: ignore[union-attr]
    reach(found, **says(PASS, PASS, PASS))
    assert found.outcome == "done"


def test_the_way_back_asks_no_gate() -> None:
    found = world(1, "100%", "100%")
    found.state = RolloutState(phase="moving", back=True, since=NOW)
    reach(found, **says(FAIL, FAIL, FAIL))
    assert found.outcome == "reverted"


@settings(max_examples=tries(150))
@given(st.data())
def test_p1_gates_never_make_anything_go_below_the_floor(data: st.DataObject) -> None:
    """Whatever gates say and whenever: the floor holds, back stays back, and there is one outcome."""
    total = data.draw(st.integers(2, 8), "total")
    minimum = data.draw(st.integers(0, total - 1), "minimum")
    named = data.draw(st.lists(st.sampled_from(["errors", "smoke"]), unique=True), "named")
    bake = data.draw(st.sampled_from([0.0, 30.0]), "bake")
    failure = data.draw(st.sampled_from(["revert", "pause"]), "on_failure")
    stages = [Stage(to=1, gates=named, bake=bake), Stage(to="50%", approve=True), Stage(to="100%", bake=bake)]
    policy = {"stages": stages, "gates": [ERRORS, SMOKE], "on_failure": failure, "progress_deadline": 60.0}
    found = World(rollout(total, minimum, policy=policy), on(total))
    standings = {gate.name: GateJudgement(began=NOW, heard=NOW) for gate in (ERRORS, SMOKE)}
    answer = st.sampled_from([PASS, PASS, PASS, FAIL, NONE])
    back = False
    for _ in range(120):
        for gate in (ERRORS, SMOKE):
            standings[gate.name] = standings[gate.name].after(gate, data.draw(answer), found.now)
        if data.draw(st.integers(0, 5)) == 0:
            word = {"approved": 3, "resumed": found.rollout.resumed + 1}
            found.rollout = msgspec.structs.replace(found.rollout, **word)
        before = found.available()
        plan = found.step(gates=standings)
        least = min(minimum, total - 1)
        assert found.available() >= min(before, least)
        assert not (back and not plan.turn and found.state is not None and not found.state.back)
        back = back or (found.state is not None and found.state.back)
        assert found.counts.get(NEW, 0) <= total
        if found.outcome:
            assert found.outcome == ("reverted" if back else "done")
            return
        assert plan.turn or plan.moves.moves or plan.waiting or plan.blocked
        found.settle()
        found.now += data.draw(st.sampled_from([1.0, 10.0, 40.0]))


def test_the_end_may_leave_ailing_pods_where_people_said_so() -> None:
    found = world("100%", gates=(), require_healthy_end=False)
    found.step()
    for _ in range(6):
        found.step()
        if len(found.new) < 4:
            found.settle()
    assert (found.outcome, found.available()) == ("done", 3)


def test_a_policy_that_no_pod_could_satisfy_is_refused() -> None:
    told = "rollout.progress_deadline: found 10 s, expected more than min_healthy_time, which is 10 s"
    with pytest.raises(InputInvalid, match=told):
        check(rollout(4, 3, policy={"progress_deadline": 10.0}), 10.0)
    with pytest.raises(InputInvalid, match=told):
        check(rollout(4, 3, policy={"progress_deadline": 10.0, "min_healthy_time": 10.0}), 0.0)
    with pytest.raises(InputInvalid, match=r"rollout.stages\[0\].gates: found 'smok'"):
        check(rollout(4, 3, policy={"stages": [Stage(to="100%", gates=["smok"])]}), 0.0)
    check(rollout(4, 3, policy={"progress_deadline": 11.0}), 10.0)


STRATEGIES = ["rolling", "availability", "resourceutil", "blue-green"]


def strategic(strategy: str) -> World:
    stages: list[Any] = ["100%"] if strategy == "blue-green" else [2, "100%"]
    policy = {"strategy": strategy, "minimum": None, "stages": stages, "gates": [ERRORS], "keep_old": 60.0}
    begun = rollout(4, 0, policy=policy, service="77aa")
    return World(begun, on(4), free=[f"f{number}" for number in range(8)])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_waits_for_its_gates_and_goes_on(strategy: str) -> None:
    found = strategic(strategy)
    assert "gate errors passed 1 of 3" in reach(found, **says(PASS)).waiting
    for _ in range(4):
        reach(found, **says(PASS, PASS, PASS))
        found.now += 61
    assert (found.outcome, len(found.old), len(found.new)) == ("done", 0, 4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_turns_back_where_a_gate_fails(strategy: str) -> None:
    found = strategic(strategy)
    reach(found, **says(PASS))
    if strategy == "blue-green":
        reach(found, **says(PASS, PASS, PASS))
        assert found.state.switched  # type: ignore[union-attr]
    reach(found, **says(FAIL, FAIL, FAIL))
    assert (found.outcome, len(found.old), len(found.new)) == ("reverted", 4, 0)
