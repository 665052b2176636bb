"""What placement promises, whatever the fleet and the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.constraints import compile_request, next_instance
from scheduler.decide import allocation, eligibility, explanation
from scheduler.feasibility import room_reasons, standing_reasons
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest
from scheduler.rank import DIGITS, Rankings, node_parts, replaced_owner
from scheduler.remote import violations
from scheduler.rules import domain_parts, domain_reasons, domain_rules
from store.manifests import Constraint, Spread
from tests.effort import tries
from tests.fleets import OWNER, fleets, placed, request, requests

arbitrary = settings(max_examples=tries(60), derandomize=True)
COUNTS = st.integers(0, 12)


@arbitrary
@given(fleets(), requests(), COUNTS)
def test_no_place_breaks_a_hard_rule(view: FleetView, asked: PlacementRequest, count: int) -> None:
    answer = allocation(asked, count, view)
    assert violations(asked, answer.assignments, count, view) == []
    assert len(answer.assignments) + answer.missing == count
    assert bool(answer.why) == bool(answer.missing)


@arbitrary
@given(fleets(), requests(), COUNTS)
def test_capacity_is_never_exceeded(view: FleetView, asked: PlacementRequest, count: int) -> None:
    answer = allocation(asked, count, view)
    for change in answer.reservations:
        before, capacity = view[change.node].reserved.instances, view[change.node].capacity
        for resource in asked.manifest.resources:
            used = sum(amounts.get(resource, 0.0) for amounts in change.record.instances.values())
            already = sum(amounts.get(resource, 0.0) for amounts in before.values())
            assert used <= max(capacity.get(resource, 0.0), already) + 1e-6
        assert change.record.generation == view[change.node].reserved.generation + 1
        assert change.index == view[change.node].reserved_index
    if asked.manifest.resources:
        assert {change.node for change in answer.reservations} == {p.node for p in answer.assignments}


@arbitrary
@given(fleets(), requests(), COUNTS, st.randoms(use_true_random=False))
def test_equal_input_gives_equal_answers_in_any_order_of_the_mapping(
    view: FleetView, asked: PlacementRequest, count: int, shuffler: object
) -> None:
    names = list(view)
    shuffler.shuffle(names)  # type: ignore[attr-defined]
    shuffled = {name: view[name] for name in names}
    assert allocation(asked, count, shuffled) == allocation(asked, count, view)
    assert eligibility(asked, shuffled) == eligibility(asked, view)
    assert explanation(asked, shuffled) == explanation(asked, view)


@arbitrary
@given(fleets(), requests())
def test_every_node_that_is_not_eligible_has_a_reason(view: FleetView, asked: PlacementRequest) -> None:
    answer = eligibility(asked, view)
    assert set(answer.eligible) | set(answer.refused) == set(view)
    assert not set(answer.eligible) & set(answer.refused)
    assert all(answer.refused.values())
    assert set(answer.eligible) <= set(answer.retained)
    told = explanation(asked, view)
    assert [verdict.node for verdict in told.verdicts] == sorted(view)
    assert all(bool(verdict.reasons) != bool(verdict.parts) for verdict in told.verdicts)
    assert all(0.0 <= part.value <= 1.0 for verdict in told.verdicts for part in verdict.parts)


@arbitrary
@given(fleets(), requests())
def test_the_explanation_ranks_first_what_allocation_takes(view: FleetView, asked: PlacementRequest) -> None:
    told = explanation(asked, view).ranking
    took = allocation(asked, 1, view).assignments
    assert [place.node for place in took] == list(told[:1])


@arbitrary
@given(fleets(most=9), requests(), COUNTS)
def test_the_heaps_choose_what_trying_every_node_each_time_would(
    view: FleetView, asked: PlacementRequest, count: int
) -> None:
    assert allocation(asked, count, view).assignments == tuple(_one_by_one(asked, count, view))


def _one_by_one(asked: PlacementRequest, count: int, view: FleetView) -> list[Assignment]:
    """The definition: for each pod, judge and score every node again and take the best."""
    requirement = compile_request(asked)
    rules = domain_rules(requirement, view, count)
    now, numbers, places = dict(view), dict.fromkeys(view, 0), []

    def score(node: NodeView) -> float:
        own = sum(p.points for p in node_parts(requirement, node))
        own += sum(p.points for r, p in _parts(rules, node) if r)
        across = sum(p.points for r, p in _parts(rules, node) if not r)
        return round(own, DIGITS) + across

    while len(places) < count:
        good = [
            node
            for node in now.values()
            if not standing_reasons(requirement, node)
            and not room_reasons(requirement, node)
            and not domain_reasons(rules, node)
        ]
        if not good:
            break
        best = min(good, key=lambda node: (-score(node), node.name))
        instance, numbers[best.name] = next_instance(requirement, best, numbers[best.name])
        place = Assignment(best.name, instance, replaced_owner(requirement, view[best.name]))
        places.append(place)
        for rule in rules:
            rule.add(rule.domain(best))
        now = dict(placed(now, (place,), asked))
    return places


def _parts(rules, node):  # type: ignore[no-untyped-def]
    return [(rule.local, part) for rule in rules for part in domain_parts([rule], node)]


@arbitrary
@given(fleets(), st.lists(requests(simple=True), min_size=1, max_size=4), COUNTS, st.data())
def test_rankings_that_are_kept_while_nodes_change_never_change_an_answer(
    view: FleetView, asked: list[PlacementRequest], count: int, data: st.DataObject
) -> None:
    rankings = Rankings()
    for _ in range(3):
        for each in asked:
            assert allocation(each, count, view, rankings) == allocation(each, count, view)
        gone = data.draw(st.sets(st.sampled_from(sorted(view)))) if view else set()
        left = {name: node for name, node in view.items() if name not in gone}
        view = {**left, **data.draw(fleets(most=3))}


@arbitrary
@given(fleets(least=2, troubles=False), requests(), COUNTS, st.data())
def test_when_one_node_leaves_only_its_pods_move(
    view: FleetView, asked: PlacementRequest, count: int, data: st.DataObject
) -> None:
    view = placed(view, allocation(asked, count, view).assignments, asked)
    gone = data.draw(st.sampled_from(sorted(view)))
    left = {name: node for name, node in view.items() if name != gone}
    before, after = eligibility(asked, view), eligibility(asked, left)
    assert set(after.retained) == set(before.retained) - {gone}
    homeless = view[gone].owners.get(OWNER, 0)
    new = allocation(asked, homeless, left).assignments
    assert len(new) <= homeless
    assert gone not in {place.node for place in new}


@arbitrary
@given(fleets(least=2, troubles=False), requests(simple=True), COUNTS, st.data())
def test_a_fresh_choice_without_one_node_keeps_all_other_places(
    view: FleetView, asked: PlacementRequest, count: int, data: st.DataObject
) -> None:
    first = allocation(asked, count, view).assignments
    gone = data.draw(st.sampled_from(sorted(view)))
    left = {name: node for name, node in view.items() if name != gone}
    second = set(allocation(asked, count, left).assignments)
    assert {place for place in first if place.node != gone} <= second


@arbitrary
@given(fleets(least=3, troubles=False), st.integers(1, 3), st.integers(1, 20), st.integers(1, 3))
def test_hard_spread_never_exceeds_its_skew(view: FleetView, skew: int, count: int, per_node: int) -> None:
    asked = request(per_node=per_node, spread=[Spread("zone", hard=True, max_skew=skew)])
    bare = {n: msgspec.structs.replace(v, pods={}, owners={}) for n, v in view.items()}
    after = placed(bare, allocation(asked, count, bare).assignments, asked)
    zones: dict[str, int] = {}
    for node in after.values():
        if (zone := node.labels.get("zone")) is not None:
            zones[zone] = zones.get(zone, 0) + node.owners.get(OWNER, 0)
        else:
            assert not node.owners
    assert max(zones.values(), default=0) - min(zones.values(), default=0) <= skew


# -- an opinion that shares nothing with the scheduler ---------------------------------------------
def _forbidden(node: NodeView, asked: PlacementRequest) -> bool:
    """In plain words: whether none of these pods may come to a node, as ``tests.fleets`` makes them."""
    manifest, labels = asked.manifest, node.labels
    tolerated = {toleration.key for toleration in manifest.placement.tolerations}
    tainted = any(t.effect == "no-schedule" and t.key not in tolerated for t in node.taints)
    selector = {
        "": True,
        "zonein(a,b)": labels.get("zone") in ("a", "b"),
        "disk=ssd": labels.get("disk") == "ssd",
        "!disk": "disk" not in labels,
    }[str(asked.selector).replace(" ", "")]
    unmet = [rule for rule in manifest.placement.constraints if not _met(rule, labels)]
    return bool(node.cordoned or node.drain or node.presence != "present" or tainted or unmet or not selector)


def _met(rule: Constraint, labels: Mapping[str, str]) -> bool:
    value = labels.get(rule.label)
    return {
        ("disk", "="): value == "ssd",
        ("disk", "!="): value != "hdd",
        ("zone", "in"): value in ("a", "b"),
        ("zone", "exists"): value is not None,
        ("cores", ">"): value == "8",
        ("kernel", "version"): value in ("5.10.0", "6.1-rc2"),
    }[rule.label, rule.operator]


@settings(arbitrary, max_examples=tries(150))
@given(fleets(), requests(), COUNTS)
def test_w25_never_on_a_forbidden_node_and_never_over_capacity(
    view: FleetView, asked: PlacementRequest, count: int
) -> None:
    answer = allocation(asked, count, view)
    going = Counter(place.node for place in answer.assignments)
    assert [name for name in going if _forbidden(view[name], asked)] == []
    for name, pods in going.items():
        node = view[name]
        assert pods + sum(pod.owner == OWNER for pod in node.pods.values()) <= asked.replicas_per_node
        mine = {place.instance for place in answer.assignments if place.node == name}
        others = [book for instance, book in node.reserved.instances.items() if instance not in mine]
        for resource, amount in asked.manifest.resources.items():
            used = sum(book.get(resource, 0.0) for book in others) + pods * amount
            assert used <= node.capacity.get(resource, 0.0) + 1e-6
    told = {verdict.node: verdict for verdict in explanation(asked, view).verdicts}
    assert all(told[name].reasons for name, node in view.items() if _forbidden(node, asked))
