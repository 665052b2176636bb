"""Both sides of preemption as plans: when pods go for others, and where a controller waits for room."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from farmd.replication import healing, preempting
from farmd.replication.model import Plan, PodState, Snapshot
from farmd.replication.plan import decide, status
from scheduler.model import Nominee, Preemption, Victim
from tests.rc_worlds import NOW, POD, controller, moving, nodes, offered, pod, world

GOING = pod(preempted="rcs/high")
NOWHERE = offered("transfer", [], missing=1)


def going(**fields: Any) -> PodState:
    return pod(preempted="rcs/high", **fields)


IDLE = going(healthy=False, at=NOW)


def evicted(plan: Plan) -> list[str]:
    return nodes(plan.evictions)


# -- who makes room --------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_a_preempted_pod_moves_before_it_breaks_where_there_is_a_place(strategy: str) -> None:
    pods = {"n1": GOING, "n2": pod()}
    asked = world(controller(2, strategy=strategy), pods)
    need = healing.need(asked)
    assert need is not None
    assert (need.purpose, need.places, need.cause) == ("transfer", (("n1", POD),), "preempted")
    plan = decide(dataclasses.replace(asked, offer=offered("transfer", ["n9"])))
    assert plan.step is not None
    assert (plan.step.action, plan.step.cause, plan.step.old) == ("start", "preempted", ("n1", POD))
    assert plan.evictions == ()


@pytest.mark.parametrize(
    ("case", "replicas", "pods", "rc", "fields", "expected"),
    [
        ("there is no place", 2, {"n1": GOING, "n2": pod()}, {}, {}, ["n1"]),
        ("its only pod", 1, {"n1": GOING}, {}, {}, ["n1"]),
        ("static too", 2, {"n1": GOING, "n2": pod()}, {"strategy": "static"}, {}, ["n1"]),
        ("only one at a time", 2, {"n1": GOING, "n2": going()}, {}, {}, ["n1"]),
        ("none that was not asked", 3, dict.fromkeys(["n1", "n2", "n3"], GOING), {"max_unavailable": 2}, {},
         ["n1"]),
        ("another is not healthy", 2, {"n1": GOING, "n2": pod(healthy=False, at=NOW)}, {}, {}, []),
        ("who does not serve goes first", 2, {"n1": GOING, "n2": IDLE}, {}, {}, ["n2"]),
        ("frozen", 2, {"n1": GOING, "n2": pod()}, {}, {"frozen": "no leader"}, []),
        ("frozen, and commanded", 2, {"n1": GOING, "n2": pod()}, {}, {"frozen": "x", "commanded": True}, []),
        ("locked", 2, {"n1": GOING, "n2": pod()}, {}, {"locked": "rollouts/7"}, []),
        ("as many moves as allowed", 2, {"n1": GOING, "n2": pod()}, {}, {"crowded": True}, []),
        ("disabled", 2, {"n1": GOING, "n2": pod()}, {"disabled": True}, {}, []),
        ("managed by a rollout", 2, {"n1": GOING, "n2": pod()}, {"managed_by": "rollouts/7"}, {}, []),
        ("on a lost node", 1, {"n1": going(lost=NOW)}, {"on_lost": "wait"}, {}, []),
        ("nobody needs its room", 2, {"n1": pod(), "n2": pod()}, {}, {}, []),
    ],
)  # fmt: skip
def test_w17_a_preempted_pod_without_a_place_goes_within_the_health_floor(
    case: str,
    replicas: int,
    pods: dict[str, PodState],
    rc: dict[str, Any],
    fields: dict[str, Any],
    expected: list[str],
) -> None:
    asked = world(controller(replicas, **rc), pods, **({"offer": NOWHERE} | fields))
    assert evicted(decide(asked)) == expected, case


def test_w17_missing_pods_count_towards_the_floor() -> None:
    """While one is missing and has no place, the next goes only if two may be missing."""
    offer = offered("additions", [], missing=1)
    stuck = dataclasses.replace(offer, stuck=("n1", POD))
    for most, expected in ((1, []), (2, ["n1"])):
        asked = world(controller(3, max_unavailable=most), {"n1": GOING, "n2": pod()}, offer=stuck)
        plan = decide(asked)
        assert evicted(plan) == expected
    asked = world(controller(3), {"n1": GOING, "n2": pod()}, offer=offer)
    assert "n1/web should make room for rcs/high: max_unavailable allows no more" in decide(asked).blocked


def test_whether_there_is_a_place_is_asked_for_the_pod_that_somebody_waits_for() -> None:
    """Rules across nodes regard the one that moves as gone: its answer is not another's."""
    pods = {"n1": pod(retained=False), "n2": going(), "n3": pod()}
    need = healing.need(world(controller(3), pods))
    assert need is not None
    assert need.places == (("n2", POD),)


DRAINING = pod(draining="gentle", retained=False)
PUT_OFF = {"not_before": NOW + 60, "failed": "preempted"}


@pytest.mark.parametrize(
    ("case", "other", "offer", "fields"),
    [
        ("a drain while its own move is put off", DRAINING, NOWHERE, PUT_OFF),
        ("a pod on a lost node", pod(lost=NOW), offered("moves", [], missing=1), {}),
        ("a missing pod", None, offered("additions", [], missing=1), {}),
    ],
)
def test_w17_no_place_for_another_is_none_for_the_preempted_pod_only_if_it_was_asked_itself(
    case: str, other: PodState | None, offer: Any, fields: dict[str, Any]
) -> None:
    pods = {"n1": GOING} | ({"n2": other} if other is not None else {})
    asked = world(controller(2, max_unavailable=2, on_lost="replace"), pods, offer=offer, **fields)
    assert decide(asked).evictions == (), case
    besides = None if fields else ("n1", POD)
    assert preempting.to_ask(asked) == besides, case
    if besides:
        answered = dataclasses.replace(asked, offer=dataclasses.replace(offer, stuck=besides))
        assert evicted(decide(answered)) == ["n1"], case


def test_a_preempted_pod_with_a_place_moves_although_others_are_missing() -> None:
    asked = world(controller(2, max_unavailable=2), {"n1": GOING}, offer=offered("transfer", ["n9"]))
    step = decide(asked).step
    assert step is not None
    assert (step.action, step.old) == ("start", ("n1", POD))


@pytest.mark.parametrize(
    ("case", "most", "offer", "fields"),
    [
        ("the floor keeps it", 1, offered("additions", [], missing=1), {}),
        ("places were found", 2, offered("additions", ["n9"], missing=1), {}),
        ("contended", 2, offered("additions", [], missing=1, contended=True), {}),
        ("frozen", 2, offered("additions", [], missing=1), {"frozen": "no leader"}),
        ("locked", 2, offered("additions", [], missing=1), {"locked": "rollouts/7"}),
        ("its last move failed", 2, offered("additions", [], missing=1), PUT_OFF),
    ],
)
def test_a_preempted_pod_is_asked_besides_only_where_it_could_go(
    case: str, most: int, offer: Any, fields: dict[str, Any]
) -> None:
    asked = world(controller(2, max_unavailable=most), {"n1": GOING}, offer=offer, **fields)
    assert preempting.to_ask(asked) is None, case


def test_who_waits_after_a_failed_move_looks_again_when_the_next_may_start() -> None:
    asked = world(
        controller(2, max_unavailable=2), {"n1": GOING}, offer=offered("additions", [], missing=1), **PUT_OFF
    )
    plan = decide(asked)
    assert plan.after == pytest.approx(60.0)
    assert "should make room for rcs/high: the last move failed" in plan.blocked


@pytest.mark.parametrize(
    ("case", "offer"),
    [
        ("a place was found", offered("transfer", ["n9"])),
        ("nobody was asked", offered("transfer", [])),
        ("others are changing reservations", offered("transfer", [], missing=1, contended=True)),
        ("some places were found", offered("additions", ["n9"], missing=1)),
    ],
)
def test_nothing_goes_as_long_as_it_is_not_certain_that_there_is_no_place(case: str, offer: Any) -> None:
    assert decide(world(controller(2), {"n1": GOING, "n2": pod()}, offer=offer)).evictions == (), case


def test_the_status_says_for_whom_and_why_not() -> None:
    asked = world(controller(2), {"n1": GOING, "n2": pod(healthy=False, at=NOW)})
    told = status(asked, decide(asked), "f", NOW)
    assert told.reason == "n1/web should move (preempted): too many of the other pods are not healthy"
    move = moving(cause="preempted")
    asked = world(controller(1), {"n1": GOING, "n9": pod(healthy=False)}, transfer=move)
    assert status(asked, decide(asked), "f", NOW).reason == "moving web from n1 to n9 (preempted)"


def test_a_move_ends_when_nobody_needs_the_room_any_more() -> None:
    move = moving(cause="preempted")
    waits = world(controller(1), {"n1": GOING, "n9": pod(healthy=False)}, transfer=move)
    assert decide(waits).step is None
    step = decide(world(controller(1), {"n1": pod(), "n9": pod(healthy=False)}, transfer=move)).step
    assert step is not None
    assert (step.action, step.reason) == ("cancel", "nobody waits for the room on n1 any more")


def test_a_preempted_pod_goes_first_when_fewer_are_wanted() -> None:
    plan = decide(world(controller(2), {"n1": pod(at=9.0), "n2": going(at=1.0), "n3": pod(at=5.0)}))
    assert nodes(plan.removals) == ["n2"]


def test_a_drain_says_more_than_a_pod_of_higher_priority() -> None:
    state = going(draining="gentle", retained=False)
    assert healing.cause_of(world(controller(1), {"n1": state}), state) == "draining"


# -- who waits for room ----------------------------------------------------------------------------
KEPT = Nominee("n1", POD, (Victim("low", "00bb", 20),), since=0.0)
NEW = Nominee("n2", POD, (Victim("low", "00bb", 20),))
MORE = Preemption(add=(NEW,))


def hungry(preemption: Preemption | None, *, replicas: int = 1, **fields: Any) -> Snapshot:
    """An RC without pods that was offered nothing but this."""
    offer = offered("additions", [], missing=1, preemption=preemption)
    return world(controller(replicas), {}, **({"offer": offer} | fields))


def test_what_fits_nowhere_is_nominated() -> None:
    plan = decide(hungry(MORE))
    assert (plan.nominations, plan.withdrawals, plan.empty) == ((NEW,), (), False)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("frozen", {"frozen": "no leader"}),
        ("a place was found", {"offer": offered("additions", ["n9"], missing=1, preemption=MORE)}),
        ("contended", {"offer": offered("additions", [], missing=1, contended=True, preemption=MORE)}),
    ],
)  # fmt: skip
def test_nothing_is_nominated_while(case: str, fields: dict[str, Any]) -> None:
    assert decide(hungry(MORE, **fields)).nominations == (), case


@pytest.mark.parametrize(
    ("case", "snapshot", "expected"),
    [
        ("it still serves", hungry(Preemption(keep=(KEPT,))), []),
        ("it does not serve any more", hungry(Preemption(drop=(KEPT.place,))), ["n1"]),
        ("preemption was switched off", hungry(None), ["n1"]),
        ("nothing is missing", world(controller(1), {"n3": pod()}), ["n1"]),
        ("disabled", world(controller(1, disabled=True), {}), ["n1"]),
        ("managed by a rollout", world(controller(1, managed_by="rollouts/7"), {}), ["n1"]),
        ("frozen", hungry(None, frozen="no leader"), []),
        ("frozen, and nothing is missing", world(controller(1), {"n3": pod()}, frozen="no leader"), ["n1"]),
        (
            "frozen, and fewer are wanted",
            world(controller(1), {"n3": pod(), "n4": pod()}, frozen="no leader"),
            ["n1"],
        ),
        (
            "frozen, for a pod on a lost node",
            world(controller(1, on_lost="replace"), {"n3": pod(lost=0.0)}, frozen="no leader"),
            [],
        ),
        ("a place is taken first", world(controller(1), {}, offer=offered("additions", ["n1"])), []),
        ("contended", hungry(None, offer=offered("additions", [], missing=1, contended=True)), []),
    ],
)  # fmt: skip
def test_a_nomination_is_withdrawn_when_it_is_needed_no_longer(
    case: str, snapshot: Snapshot, expected: list[str]
) -> None:
    plan = decide(dataclasses.replace(snapshot, nominated=frozenset({KEPT.place})))
    assert nodes(plan.withdrawals) == expected, case


def test_who_waits_says_where_since_when_and_for_whom() -> None:
    asked = hungry(
        Preemption(keep=(KEPT,)),
        nominated=frozenset({KEPT.place}),
        holders={"00bb": "rcs/low (n1/low should move (preempted): too many are not healthy)"},
    )
    told = status(asked, decide(asked), "f", NOW)
    assert told.state == "blocked"
    assert told.reason.startswith(
        "preempting on node n1 since 1970-01-01T00:00:00Z, waits for rcs/low (n1/low should move (preempted)"
    )
    assert decide(asked).after == pytest.approx(15.0)


def test_who_can_preempt_nobody_says_so_and_who_keeps_the_room() -> None:
    asked = hungry(
        Preemption(why="no more room", barred=("00bb", "00cc")), holders={"00bb": "rcs/low (disabled)"}
    )
    assert "preempts nothing: no more room; these stay: rcs/low (disabled), 00cc" in decide(asked).blocked


def test_what_is_off_changes_no_plan() -> None:
    plan = decide(hungry(None))
    assert (plan.nominations, plan.withdrawals, plan.after) == ((), (), None)
    assert plan.blocked == "1 pods found no place"
