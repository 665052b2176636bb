"""The machines of one plan: what is eligible, who is emptiest, and what earlier services took."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given

from scheduler.cluster import ClusterState
from scheduler.constraints import compile_request
from scheduler.decide import eligibility
from scheduler.errors import NoMachine
from scheduler.feasibility import standing_reasons
from scheduler.model import FleetView, PlacementRequest, PodView
from store.manifests import Constraint, Placement, asked
from store.nodes import NodeVolume, Taint
from tests.fleets import fleet, fleets, node, request, requests


@given(fleets(), requests())
def test_a_machine_is_eligible_exactly_if_the_scheduler_has_no_standing_reason(
    view: FleetView, question: PlacementRequest
) -> None:
    requirement = compile_request(question)
    state = ClusterState(view)
    asked_of = view.keys() if question.among is None else question.among & view.keys()
    free = {name for name in asked_of if not standing_reasons(requirement, view[name])}
    found = state.suitable(question)
    assert set(state.listed(found.eligible)) == free
    kept = set(state.listed(found.retained)) & set(eligibility(question, view).retained)
    assert kept == set(eligibility(question, view).retained)


@given(fleets(), requests())
def test_equal_input_gives_equal_places_in_any_order_of_the_map(
    view: FleetView, question: PlacementRequest
) -> None:
    backwards = dict(reversed(view.items()))
    one, other = (ClusterState(each, seed="d1") for each in (view, backwards))
    amounts = asked(question.manifest)
    assert list(one.emptiest(one.suitable(question).eligible, amounts)) == list(
        other.emptiest(other.suitable(question).eligible, amounts)
    )


def test_another_deployment_breaks_ties_otherwise() -> None:
    view = fleet(*(node(f"m{number}") for number in range(9)))
    orders = {tuple(ClusterState(view, seed=seed).names) for seed in ("", "d1", "d2")}
    assert len(orders) == 3


def taken(state: ClusterState, amounts: Mapping[str, float], times: int) -> list[str]:
    found = []
    for _ in range(times):
        name = next(state.emptiest(state.suitable(request()).eligible, amounts), "")
        if name:
            state.reserve(name, amounts)
        found.append(name)
    return found


def test_services_of_one_plan_see_the_load_of_those_before_them() -> None:
    full = {"a": PodView("x"), "b": PodView("x")}
    state = ClusterState(fleet(node("m1", pods=full), node("m2"), node("m3")))
    assert taken(state, {}, 7) == ["m2", "m3", "m2", "m3", "m1", "m2", "m3"]
    assert [state.load(name) for name in ("m1", "m2", "m3")] == [3, 3, 3]


def test_services_of_one_plan_see_the_room_that_those_before_them_left() -> None:
    state = ClusterState(fleet(node("m1", capacity={"cpu": 2}), node("m2", capacity={"cpu": 1})))
    assert taken(state, {"port/80/tcp": 1.0}, 3) == ["m1", "m2", ""]
    assert taken(state, {"cpu": 1.0}, 4) == ["m1", "m2", "m1", ""]
    assert state.room("m1", {}) > 1000


def test_no_machine_names_each_machines_reasons() -> None:
    state = ClusterState(
        fleet(
            node("m1", cordoned=True),
            node("m2", taints=[Taint("gpu")]),
            node("m3", capacity={"cpu": 1}),
            node("m4", capacity={"cpu": 4}),
        )
    )
    state.reserve("m4", {"cpu": 3.0})
    with pytest.raises(NoMachine) as caught:
        raise state.no_machine(request(resources={"cpu": 2}), "web")
    assert str(caught.value) == (
        "services.web: no machine can take it: m1: closed to new pods, asks for 2 cores, the node has none;"
        " m2: taint gpu is not tolerated, asks for 2 cores, the node has none;"
        " m3: asks for 2 cores, 1 of 1 free; m4: what is left of it is used by other services of this plan"
    )


def test_no_machine_tells_a_reason_once_for_all_machines_that_share_it() -> None:
    state = ClusterState(fleet(*(node(f"m{at}", cordoned=at != 7) for at in range(1000))))
    told = str(state.no_machine(request(), "web", machines=0))
    assert told == (
        "services.web: no machine can take it: m0 and 998 more: closed to new pods;"
        " m7: does not have the volumes that the service mounts"
    )


def test_no_machine_is_a_short_message_whatever_each_machine_says_of_itself() -> None:
    many = [node(f"m{at}", labels={"node": f"m{at}"}) for at in range(1000)]
    named = request(placement=Placement(constraints=[Constraint("node", "in", ["web1"])]))
    told = str(ClusterState(fleet(*many)).no_machine(named, "web"))
    assert told == "services.web: no machine can take it: m0 and 999 more: needs node in (web1)"
    racks = [node(f"m{at}", labels={"rack": f"r{at}"}) for at in range(1000)]
    there = request(placement=Placement(constraints=[Constraint("rack", "in", ["r"])]))
    told = str(ClusterState(fleet(*racks)).no_machine(there, "web"))
    assert told.count("; ") == 8
    assert told.endswith("; 992 more for other reasons")


def test_a_volume_of_a_machine_that_nobody_sees_is_known() -> None:
    state = ClusterState(fleet(node("m1")), {"gone": {"data": NodeVolume()}})
    assert list(state.listed(state.having("data"))) == ["gone"]
