"""Self-healing: what is replaced by itself, when, and how many at a time (W17, W24, R21)."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.pods.state import PodState, sick_since
from farmd.replication import healing
from farmd.replication.plan import decide, status
from tests.plans import said
from tests.rc_worlds import NEWER, NOW, controller, nodes, offered, pod, world

LONG = NOW - 301
SICK = pod(healthy=False, since=LONG, at=1.0)
OLD_SICK = pod(healthy=False, since=LONG, manifest=NEWER)
LOST = {"lost": NOW - 100, "retained": False, "absent": True}


def gone(**fields: Any) -> PodState:
    return pod(**(LOST | fields))


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_w17_a_pod_on_a_lost_node_is_replaced_in_one_go(strategy: str) -> None:
    pods = {"n1": gone(), "n2": pod(), "n3": pod()}
    rc = controller(3, strategy=strategy)
    need = healing.need(world(rc, pods))
    assert need is not None
    assert (need.purpose, nodes(need.places)) == ("moves", ["n1"])
    plan = decide(world(rc, pods, offer=offered("moves", ["n4"])))
    assert [(old[0], new.node) for old, new in plan.moves] == [("n1", "n4")]
    assert plan.removals == plan.additions == ()


@pytest.mark.parametrize(
    ("case", "rc", "pods", "fields", "moved"),
    [
        ("on_lost: wait", {"on_lost": "wait"}, {"n1": gone(), "n2": pod()}, {}, []),
        ("R21: absent is not lost", {}, {"n1": pod(absent=True, retained=True), "n2": pod()}, {}, []),
        ("R18: frozen", {}, {"n1": gone(), "n2": pod()}, {"frozen": "doubt"}, []),
        ("disabled", {"disabled": True}, {"n1": gone(), "n2": pod()}, {}, []),
        ("R14: managed", {"managed_by": "rollouts/1", "taken": True}, {"n1": gone(), "n2": pod()}, {}, []),
        ("R27: it may still run there", {}, {"n1": gone(), "n2": pod()}, {"stop_after": 100.0}, []),
        ("R27: it has stopped", {}, {"n1": gone(), "n2": pod()}, {"stop_after": 80.0}, ["n1"]),
        ("one at a time", {}, {"n1": gone(), "n2": gone()}, {}, ["n1"]),
        ("max_unavailable at a time", {"max_unavailable": 2}, {"n1": gone(), "n2": gone()}, {}, ["n1", "n2"]),
        ("the last one is still coming up", {}, {"n1": gone(), "n2": pod(healthy=False, at=NOW - 9)}, {}, []),
        ("one that stays bad holds nothing up", {}, {"n1": gone(), "n2": SICK}, {}, ["n1"]),
        ("too many anyway: removal takes it", {"replicas": 1}, {"n1": gone(), "n2": pod()}, {}, []),
    ],
)  # fmt: skip
def test_lost_pods_are_replaced_within_their_budget(
    case: str, rc: dict[str, Any], pods: dict[str, PodState], fields: dict[str, Any], moved: list[str]
) -> None:
    need = healing.need(world(controller(**({"replicas": 2} | rc)), pods, **fields))
    found = nodes(need.places) if need is not None and need.purpose == "moves" else []
    assert found == moved, case


def test_r25_what_moves_at_once_fits_into_one_transaction() -> None:
    pods = {f"n{number}": gone() for number in range(30)}
    need = healing.need(world(controller(30, max_unavailable=30), pods))
    assert need is not None
    assert need.count == healing.MOVES_AT_ONCE


def test_a_lost_pod_without_a_place_stays_and_says_why() -> None:
    pods = {"n1": gone(), "n2": pod()}
    plan = decide(world(controller(2), pods, offer=offered("moves", [], missing=1)))
    assert plan.empty
    assert "found no place" in said(plan)


def test_what_is_lost_is_not_called_healthy() -> None:
    shot = world(controller(2, on_lost="wait"), {"n1": gone(), "n2": pod()})
    assert status(shot, decide(shot), "f", 0.0).healthy == 1


def test_waits_end_by_a_timer_of_their_own_only() -> None:
    pods = {"n1": gone(), "n2": pod()}
    assert decide(world(controller(2), pods, stop_after=100.0)).after == pytest.approx(10.0)
    coming = {"n1": gone(), "n2": pod(healthy=False, at=NOW - 9)}
    assert decide(world(controller(2), coming)).after == pytest.approx(291.0)


def test_r18_a_freeze_that_holds_healing_back_is_said() -> None:
    plan = decide(world(controller(2), {"n1": gone(), "n2": pod()}, frozen="doubt"))
    assert plan.empty
    assert said(plan) == "frozen: doubt"


# -- pods that stay unhealthy ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "state", "since"),
    [
        ("healthy", pod(), None),
        ("critical", pod(healthy=False, since=LONG), LONG),
        ("critical since the start", pod(healthy=False), 1.0),
        ("counted from its placing at the earliest", pod(healthy=False, since=5.0, at=LONG), LONG),
        ("it does not stay up", pod(healthy=False, state="unknown", phase="backoff", since=LONG), LONG),
        ("between two starts", pod(healthy=False, state="unknown", phase="starting", started=0.0), None),
        (
            "no start succeeds",
            pod(healthy=False, state="unknown", phase="failed", started=0.0, at=LONG),
            LONG,
        ),
        ("W24: nobody could find out", pod(healthy=False, state="unknown", since=LONG), None),
        ("a warning serves", pod(healthy=False, state="warning", since=LONG), None),
        ("R21: its agent is absent", pod(healthy=False, since=LONG, absent=True), None),
        ("its agent has not acted yet", pod(healthy=False, since=LONG, acted=4), None),
        ("R22: no reality, or none that decodes", pod(reality=False, at=LONG), None),
    ],
)
def test_w24_silence_is_not_illness(case: str, state: PodState, since: float | None) -> None:
    assert sick_since(state) == since, case


@pytest.mark.parametrize(
    ("case", "rc", "pods", "chosen"),
    [
        ("static", {"strategy": "static"}, {"n1": SICK, "n2": pod()}, "n1"),
        ("dynamic", {}, {"n1": SICK, "n2": pod()}, "n1"),
        ("not for so long yet", {}, {"n1": pod(healthy=False, since=NOW - 299), "n2": pod()}, None),
        ("never", {"unhealthy_after": 0.0}, {"n1": SICK, "n2": pod()}, None),
        ("sooner", {"unhealthy_after": 5.0}, {"n1": pod(healthy=False, since=NOW - 6), "n2": pod()}, "n1"),
        ("all are: one at a time", {}, {"n1": SICK, "n2": SICK}, "n1"),
        ("an update will replace it in place", {}, {"n1": OLD_SICK, "n2": pod()}, None),
    ],
)  # fmt: skip
def test_w17_what_stays_unhealthy_is_replaced_make_before_break(
    case: str, rc: dict[str, Any], pods: dict[str, PodState], chosen: str | None
) -> None:
    need = healing.need(world(controller(2, **rc), pods))
    assert (need and (need.purpose, need.cause, need.places[0][0])) == (
        None if chosen is None else ("transfer", "unhealthy", chosen)
    ), case


def test_an_unhealthy_pod_owns_a_timer_until_it_is_replaced() -> None:
    pods = {"n1": pod(healthy=False, since=NOW - 100), "n2": pod()}
    assert decide(world(controller(2), pods)).after == pytest.approx(200.0)
    assert decide(world(controller(2, unhealthy_after=0.0), pods)).after is None


# -- forced drains -----------------------------------------------------------------------------
FORCED = {"draining": "forced", "retained": False}


def test_a_forced_drain_waits_for_no_health() -> None:
    pods = {"n1": pod(**FORCED), "n2": pod(healthy=False, at=NOW)}
    plan = decide(world(controller(2), pods, offer=offered("moves", ["n3"])))
    assert [(old[0], new.node) for old, new in plan.moves] == [("n1", "n3")]


def test_a_forced_drain_removes_what_finds_no_place() -> None:
    pods = {"n1": pod(**FORCED), "n2": pod()}
    plan = decide(world(controller(2), pods, offer=offered("moves", [], missing=1)))
    assert nodes(plan.removals) == ["n1"]


def test_a_forced_drain_leaves_system_pods_to_their_stage() -> None:
    plan = decide(world(controller(1), {"n1": pod(draining="forced")}))
    assert plan.empty


def test_r18_a_forced_drain_obeys_a_freeze() -> None:
    shot = world(controller(2), {"n1": pod(**FORCED), "n2": pod()}, frozen="doubt", commanded=True)
    assert healing.need(shot) is None
    assert decide(shot).empty


# -- contention --------------------------------------------------------------------------------
def test_r17_contention_that_will_pass_is_no_blocked_reason() -> None:
    short = offered("additions", [], missing=1, contended=True)
    assert said(decide(world(controller(1), {}, offer=short))) == ""
    long = offered("additions", [], missing=1)
    assert said(decide(world(controller(1), {}, offer=long))) != ""
