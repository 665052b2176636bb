"""R19, R28: owners restart what fails its check for too long in place, where they can move it nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.pods.ailing import restart_due
from farmd.pods.changes import PodPlan, planned
from farmd.pods.state import PodState
from farmd.replication.plan import decide
from store.pods import Pod
from tests.rc_worlds import NOW, POD, SHA, controller, nodes, offered, pod, world

PATIENCE = 300.0
SICK: dict[str, Any] = {"healthy": False, "since": NOW - 301}


@pytest.mark.parametrize(
    ("case", "state", "after"),
    [
        ("unhealthy from now on", pod(healthy=False, since=NOW, at=NOW), 300.0),
        ("it was restarted once in vain", pod(healthy=False, since=NOW, at=NOW, restart=1), 600.0),
        ("thrice", pod(healthy=False, since=NOW, at=NOW, restart=3), 2400.0),
        ("an hour at most", pod(healthy=False, since=NOW, at=NOW, restart=9), 3600.0),
        ("it was well in between", pod(healthy=False, since=NOW, at=NOW - 3601, restart=9), 300.0),
        ("its start alone takes longer", pod(healthy=False, since=NOW, at=NOW - 400, restart=9), 3600.0),
        ("healthy", pod(), None),
        ("it does not stay up, and has the backoff of crashes", pod(healthy=False, phase="backoff"), None),
        ("W24: nobody could find out", pod(healthy=False, state="unknown", since=NOW), None),
        ("R21: its agent is absent", pod(healthy=False, since=NOW, absent=True), None),
        ("its agent has not acted yet", pod(healthy=False, since=NOW, acted=4), None),
    ],
)
def test_each_restart_that_did_not_help_doubles_the_patience(
    case: str, state: PodState, after: float | None
) -> None:
    due = restart_due(state, 0, PATIENCE)
    assert (due if due is None else due - NOW) == after, case
    assert restart_due(state, 0, 0.0) is None


def test_restarts_that_the_owner_counts_itself_double_nothing() -> None:
    assert restart_due(pod(healthy=False, since=NOW, at=NOW, restart=4), 4, PATIENCE) == NOW + PATIENCE


@pytest.mark.parametrize(
    ("case", "rc", "fields", "restarted"),
    [
        ("no place", {}, {"offer": offered("transfer", [], missing=1)}, ["n1"]),
        ("a place: it moves", {}, {"offer": offered("transfer", ["n9"])}, []),
        ("others are choosing", {}, {"offer": offered("transfer", [], missing=1, contended=True)}, []),
        ("nobody asked yet", {}, {}, []),
        ("R18: frozen", {}, {"offer": offered("transfer", [], missing=1), "frozen": "doubt"}, []),
        ("never", {"unhealthy_after": 0.0}, {"offer": offered("transfer", [], missing=1)}, []),
    ],
)
def test_a_controller_restarts_what_it_can_move_nowhere(
    case: str, rc: dict[str, Any], fields: dict[str, Any], restarted: list[str]
) -> None:
    plan = decide(world(controller(2, **rc), {"n1": pod(**SICK, at=NOW - 301), "n2": pod()}, **fields))
    assert nodes(plan.restarts) == restarted, case  # type: ignore[union-attr]


def test_a_restart_that_waits_for_its_turn_owns_a_timer() -> None:
    sick = pod(**SICK, at=NOW - 301, restart=1)
    plan = decide(world(controller(1), {"n1": sick}, offer=offered("transfer", [], missing=1)))
    assert (plan.restarts, plan.after) == ((), pytest.approx(299.0))  # type: ignore[union-attr]


def test_the_pods_own_counter_rises_and_its_patience_begins_anew() -> None:
    place, state = ("n1", POD), pod(**SICK, restart=6)
    new = Pod(manifest=SHA, at=NOW)
    (change,) = planned(
        controller(1, restart=2), PodPlan(restarts=(place,)), {place: state}, new, keep_age=True
    )
    assert change.action == "restart"
    assert change.intent is not None
    assert change.intent.restart == 7
    assert change.pod is not None
    assert change.pod.at == NOW
