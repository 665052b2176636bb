"""Pods that stay together: where there are matching pods the others follow, else all choose the same node."""

from __future__ import annotations

from typing import Any

from scheduler import decide
from scheduler.model import FleetView, PlacementRequest, PodView
from store.manifests import Placement, PodAffinity
from store.nodes import Drain
from tests.fleets import fleet, node, request

SHOP = {"project": "shop"}


def near(topology: str = "", **fields: Any) -> PlacementRequest:
    rule = PodAffinity("project=shop", topology)
    return request(labels=SHOP, placement=Placement(pod_affinity=[rule]), **fields)


def places(view: FleetView, count: int = 1, topology: str = "", **fields: Any) -> list[str]:
    return [place.node for place in decide.allocation(near(topology, **fields), count, view).assignments]


DB = {"db": PodView("other", SHOP)}


def test_a_pod_follows_those_that_match() -> None:
    view = fleet(node("a"), node("b", pods=DB), node("c"))
    assert places(view) == ["b"]
    refused = decide.allocation(near(), 2, view)
    assert "without the pods that these must be near" in refused.why
    assert "'project=shop', which is on b" in refused.why


def test_pods_that_have_to_leave_keep_nobody() -> None:
    view = fleet(node("a"), node("b", pods=DB, drain=Drain()), node("c", pods=DB, lost=True))
    assert places(view) == ["a"]


def test_the_first_of_a_group_choose_the_same_node_however_full_it_is() -> None:
    empty = [node(name) for name in "abcd"]
    (first,) = places(fleet(*empty))
    full = node(first, pods={f"p{n}": PodView("o") for n in range(9)})
    assert places(fleet(full, *(each for each in empty if each.name != first))) == [first]


def test_several_pods_of_one_request_come_to_one_node() -> None:
    assert len(set(places(fleet(node("a"), node("b"), node("c")), 3, per_node=3))) == 1


def test_a_domain_may_be_wider_than_a_node() -> None:
    nodes = [node("a", {"rack": "1"}), node("b", {"rack": "2"}, pods=DB), node("c", {"rack": "2"})]
    assert set(places(fleet(*nodes), 3, "rack")) == {"b", "c"}
