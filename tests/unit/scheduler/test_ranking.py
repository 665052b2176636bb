"""Which node is taken: load, affinity, spread, anti-affinity, take-over, and names where all is equal."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.decide import allocation, explanation
from scheduler.model import Assignment, FleetView, PlacementRequest, PodView
from store.manifests import Affinity, AntiAffinity, Constraint, Spread
from store.nodes import Drain, Taint
from tests.fleets import OWNER, fleet, node, placed, request

FOREIGN = {"db": PodView("other", {"app": "db"})}


def taken(asked: PlacementRequest, count: int, view: FleetView) -> list[str]:
    return [place.node for place in allocation(asked, count, view).assignments]


def zones(spec: str, **said: object) -> FleetView:
    """``a1 a2 b1``: nodes whose zone is their first letter."""
    return fleet(*(node(name, {"zone": name[0], "host": name}) for name in spec.split()))


def test_equal_nodes_are_filled_in_order_of_name() -> None:
    view = fleet(*(node(name) for name in ("n10", "n2", "n1", "n3")))
    assert taken(request(), 3, view) == ["n1", "n10", "n2"]


def test_w25_the_emptier_node_goes_first_and_load_does_not_concentrate() -> None:
    view = fleet(node("a", pods={**FOREIGN, "x": PodView("other")}), node("b", pods=FOREIGN), node("c"))
    assert taken(request(), 3, view) == ["c", "b", "a"]
    even = taken(request(per_node=10), 12, fleet(*(node(f"n{n}") for n in range(4))))
    assert set(Counter(even).values()) == {3}


def test_with_resources_the_scarcest_one_decides() -> None:
    view = fleet(
        node("a", capacity={"cpu": 10, "memory": 10}, reserved={"x": {"memory": 8}}, index=1),
        node("b", capacity={"cpu": 10, "memory": 10}, reserved={"x": {"cpu": 5, "memory": 5}}, index=1),
    )
    assert taken(request(resources={"cpu": 1, "memory": 1}), 2, view) == ["b", "a"]


def test_affinity_pulls_and_pushes_by_weight() -> None:
    view = fleet(node("a", {"disk": "hdd"}), node("b", {"disk": "ssd"}), node("c", {"disk": "none"}))
    rules = [Affinity("disk", values=["ssd"], weight=40), Affinity("disk", values=["hdd"], weight=-40)]
    assert taken(request(affinity=rules), 3, view) == ["b", "c", "a"]


def test_a_soft_taint_is_taken_last() -> None:
    view = fleet(node("a", taints=[Taint("old", effect="prefer-no-schedule")]), node("b", pods=FOREIGN))
    assert taken(request(), 2, view) == ["b", "a"]


def test_r14_nodes_of_the_replaced_owner_are_taken_first_and_named() -> None:
    view = fleet(node("a"), node("b", pods={"web": PodView("old")}))
    answer = allocation(request(replaces=frozenset({"old"})), 2, view)
    assert answer.assignments == (Assignment("b", "web", "old"), Assignment("a", "web"))


def test_numbered_instances_take_the_lowest_free_number() -> None:
    view = fleet(node("a", pods={"web~0": PodView(OWNER), "web~2": PodView("other"), "web": PodView("x")}))
    answer = allocation(request(per_node=4), 3, view)
    assert [place.instance for place in answer.assignments] == ["web~1", "web~3", "web~4"]


def test_soft_spread_evens_out_and_overflows_where_there_is_room() -> None:
    view = zones("a1 a2 a3 a4 b1 c1 c2")
    assert taken(request(spread=[Spread("zone")]), 7, view) == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


def test_hard_spread_waits_for_the_emptiest_zone_and_goes_on_when_it_caught_up() -> None:
    view = fleet(*(node(name, {"zone": name[0]}) for name in ["a1", "a2", "a3", "b1", "b2"]))
    loaded = fleet(
        *(node(n.name, n.labels, pods=FOREIGN if n.name[0] == "b" else None) for n in view.values())
    )
    # without the spread, load would fill zone a first
    assert taken(request(), 3, loaded) == ["a1", "a2", "a3"]
    assert taken(request(spread=[Spread("zone", hard=True)]), 5, loaded) == ["a1", "b1", "a2", "b2", "a3"]
    assert taken(request(spread=[Spread("zone", hard=True, max_skew=2)]), 5, loaded) == [
        "a1",
        "a2",
        "b1",
        "a3",
        "b2",
    ]


def test_hard_spread_stops_rather_than_exceed_its_skew() -> None:
    answer = allocation(request(spread=[Spread("zone", hard=True)]), 5, zones("a1 a2 a3 b1"))
    assert [place.node for place in answer.assignments] == ["a1", "b1", "a2"]
    assert answer.missing == 2
    assert "ruled out by the spread" in answer.why


def test_hard_spread_over_hosts_reopens_each_host_when_all_have_caught_up() -> None:
    asked = request(per_node=3, spread=[Spread("host", hard=True)])
    assert taken(asked, 7, zones("a1 a2 b1")) == ["a1", "a2", "b1", "a1", "a2", "b1", "a1"]


def test_two_spreads_together() -> None:
    asked = request(per_node=2, spread=[Spread("host", hard=True), Spread("zone")])
    assert taken(asked, 6, zones("a1 a2 b1")) == ["a1", "b1", "a2", "b1", "a1", "a2"]


@pytest.mark.parametrize(
    ("trouble", "goes_on"),
    [
        ({"cordoned": True}, True),
        ({"drain": Drain()}, True),
        ({"lost": True}, True),
        ({"taints": [Taint("gpu")]}, True),
        ({"absent": True}, False),
        ({"pods": {"web": PodView("other")}}, False),
    ],
)
def test_a_zone_nobody_may_use_is_no_zone_but_one_with_a_hiccup_is(
    trouble: dict[str, object], goes_on: bool
) -> None:
    view = fleet(
        node("a1", {"zone": "a"}),
        node("a2", {"zone": "a"}),
        node("b1", {"zone": "b"}, **trouble),  # type: ignore[arg-type]
    )
    got = taken(request(spread=[Spread("zone", hard=True)]), 2, view)
    assert got == (["a1", "a2"] if goes_on else ["a1"])


def test_a_zone_outside_the_constraints_is_no_zone() -> None:
    asked = request(constraints=[Constraint("zone", "!=", ["b"])], spread=[Spread("zone", hard=True)])
    assert taken(asked, 2, zones("a1 a2 b1")) == ["a1", "a2"]


def test_leaving_pods_do_not_count_for_the_spread() -> None:
    view = fleet(
        node("a1", {"zone": "a"}, pods={"web": PodView(OWNER)}, drain=Drain()),
        node("z2", {"zone": "a"}),
        node("b1", {"zone": "b"}, pods={"web": PodView(OWNER)}),
        node("b2", {"zone": "b"}),
    )
    spread = [Spread("zone", hard=True)]
    assert taken(request(spread=spread), 1, view) == ["b2"]
    assert taken(request(spread=spread, leaving=frozenset({("a1", "web")})), 1, view) == ["z2"]


def test_anti_affinity_to_its_own_kind_gives_one_a_rack() -> None:
    view = fleet(*(node(name, {"rack": name[0]}) for name in ["a1", "a2", "b1", "b2"]), node("lone"))
    asked = request(anti_affinity=[AntiAffinity("app=web", "rack")])
    assert taken(asked, 5, view) == ["a1", "b1", "lone"]
    after = placed(view, allocation(asked, 5, view).assignments, asked)
    assert allocation(asked, 1, after).missing == 1


def test_anti_affinity_sees_the_labels_that_the_new_pods_will_bear() -> None:
    view = fleet(node("a", {"rack": "r"}), node("b", {"rack": "r"}))
    asked = request(labels={"app": "batch"}, anti_affinity=[AntiAffinity("app=web", "rack")])
    assert taken(asked, 2, view) == ["a", "b"]


def test_the_pods_that_a_rollout_replaces_do_not_keep_their_successors_away() -> None:
    view = fleet(node("a", {"rack": "r"}, pods={"web": PodView("old", {"app": "web"})}))
    rules = [AntiAffinity("app=web", "rack")]
    assert taken(request(anti_affinity=rules, replaces=frozenset({"old"})), 1, view) == ["a"]
    assert taken(request(anti_affinity=rules, numbered=True), 1, view) == []


def test_soft_anti_affinity_prefers_the_free_rack() -> None:
    view = fleet(node("a", {"rack": "a"}, pods=FOREIGN), node("a2", {"rack": "a"}), node("b", {"rack": "b"}))
    asked = request(anti_affinity=[AntiAffinity("app=db", "rack", hard=False)])
    assert taken(asked, 3, view) == ["b", "a2", "a"]


def test_the_score_is_the_sum_of_its_named_parts() -> None:
    view = fleet(node("a", {"disk": "ssd", "zone": "z"}, taints=[Taint("old", effect="prefer-no-schedule")]))
    asked = request(
        affinity=[Affinity("disk", values=["ssd"], weight=30), Affinity("disk", values=["hdd"])],
        spread=[Spread("zone", weight=10)],
        anti_affinity=[AntiAffinity("app=db", hard=False, weight=7)],
    )
    verdict = explanation(asked, view).verdicts[0]
    assert {part.name: part.points for part in verdict.parts} == {
        "load": 20.0,
        "affinity:disk = ssd": 30.0,
        "affinity:disk = hdd": 0.0,
        "taint:old": -60.0,
        "spread:zone": 10.0,
        "anti-affinity:app=db": 7.0,
    }
    assert verdict.score == 7.0
