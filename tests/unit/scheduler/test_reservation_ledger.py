"""R17: reservations as compare-and-set, and one farm's workers that do not collide."""

from __future__ import annotations

import json

import pytest

from scheduler.decide import allocation, deallocation
from scheduler.errors import ReservationContended
from scheduler.feasibility import cramped
from scheduler.ledger import Ledger, change_reservations
from scheduler.model import Assignment
from store.keys import Keys
from store.manifests import Port
from store.operations import Verb
from tests.fleets import fleet, node, placed, request

ASKED = request(resources={"cpu": 1.0}, per_node=9)
KEYS = Keys()


def test_r17_a_reservation_is_one_compare_and_set_a_node_with_a_map_and_the_next_generation() -> None:
    view = fleet(node("a", capacity={"cpu": 4}, reserved={"db": {"cpu": 1}}, index=7), node("b"))
    answer = allocation(ASKED, 2, view)
    [reservation] = answer.reservations
    operation = reservation.operation(KEYS)
    assert (operation.verb, operation.key, operation.index) == (Verb.CAS, "farmd/reserved/a", 7)
    assert json.loads(operation.value) == {
        "instances": {"db": {"cpu": 1}, "web~0": {"cpu": 1}, "web~1": {"cpu": 1}},
        "generation": 1,
    }


def test_r17_the_first_reservation_of_a_node_creates_its_record() -> None:
    [change] = allocation(ASKED, 1, fleet(node("a", capacity={"cpu": 1}))).reservations
    assert change.operation(KEYS).index == 0


def test_what_asks_for_nothing_reserves_nothing() -> None:
    assert allocation(request(), 1, fleet(node("a"))).reservations == ()


def test_fields_of_a_newer_version_survive() -> None:
    view = fleet(node("a", capacity={"cpu": 4}, reserved={"db": {"cpu": 1}}, index=7))
    [change] = allocation(ASKED, 1, view).reservations
    newer = type(change)(change.node, change.record, change.index, b'{"generation":0,"zones":["x"]}')
    assert json.loads(newer.operation(KEYS).value)["zones"] == ["x"]


def test_r17_after_a_restore_of_the_store_no_commit_of_before_counts() -> None:
    ledger, before = Ledger(), fleet(node("a", capacity={"cpu": 4}, index=7))
    reservations = allocation(ASKED, 1, before).reservations
    with ledger.hold(reservations) as hold:
        hold.committed(90)
    ledger.forget()
    assert ledger.overlay(before) == before
    with ledger.hold(reservations):
        pass


def test_giving_back_twice_changes_nothing() -> None:
    view = fleet(node("a", reserved={"web": {"cpu": 1}, "db": {"cpu": 1}}, index=7), node("b"))
    places = [Assignment("a", "web"), Assignment("b", "web"), Assignment("gone", "web")]
    answer = deallocation(request(), [*places, places[0]], view)
    [change] = answer.reservations
    assert change.record.instances == {"db": {"cpu": 1}}
    after = fleet(node("a", reserved={"db": {"cpu": 1}}, index=8), node("b"))
    assert deallocation(request(), places, after).reservations == ()


def test_removals_and_additions_of_one_plan_are_one_change_a_node() -> None:
    view = fleet(node("a", reserved={"web~0": {"cpu": 1}}, index=7))
    gone, new = Assignment("a", "web~0"), Assignment("a", "web~1")
    [change] = change_reservations(view, add=[new], request=request(resources={"cpu": 2}), remove=[gone])
    assert change.record.instances == {"web~1": {"cpu": 2}}
    [change] = change_reservations(view, add=[gone])  # a new version that asks for nothing
    assert change.record.instances == {}


def test_r17_two_workers_of_one_farm_do_not_plan_from_the_same_index() -> None:
    view = fleet(*(node(name, capacity={"cpu": 2}) for name in ("a", "b")))
    ledger = Ledger()
    first = allocation(ASKED, 1, ledger.overlay(view))
    with ledger.hold(first.reservations) as hold:
        second = allocation(ASKED, 1, ledger.overlay(view))
        assert [place.node for place in first.assignments + second.assignments] == ["a", "b"]
        everything = allocation(ASKED, 4, ledger.overlay(view))
        assert (len(everything.assignments), everything.refusals["contended"]) == (2, 1)
        with pytest.raises(ReservationContended):
            ledger.hold(first.reservations)
        hold.committed(50)
    third = allocation(ASKED, 9, ledger.overlay(view))
    assert {change.node: change.index for change in third.reservations} == {"b": 0}
    assert [place.node for place in third.assignments] == ["b", "a", "b"]  # a has room for one only


def test_a_reservation_without_a_pod_heals_when_its_name_is_taken_again() -> None:
    view = fleet(node("a", capacity={"cpu": 2}, reserved={"web~0": {"cpu": 1}}, index=7))
    answer = allocation(ASKED, 1, view)
    assert answer.assignments == (Assignment("a", "web~0"),)
    assert answer.reservations == ()


def test_a_plan_from_before_a_commit_is_refused() -> None:
    view = fleet(node("a", capacity={"cpu": 9}))
    ledger = Ledger()
    stale = allocation(ASKED, 1, view)
    with ledger.hold(allocation(ASKED, 1, view).reservations) as hold:
        hold.committed(50)
    with pytest.raises(ReservationContended):
        ledger.hold(stale.reservations)


def test_the_ledger_forgets_what_the_cache_has_caught_up_with() -> None:
    view = fleet(node("a", capacity={"cpu": 9}))
    ledger = Ledger()
    answer = allocation(ASKED, 1, view)
    with ledger.hold(answer.reservations) as hold:
        hold.committed(50)
    caught_up = placed(view, answer.assignments, ASKED, index=50)
    assert ledger.overlay(caught_up) is caught_up
    assert ledger.overlay(view) is view  # nothing is remembered any more


def test_after_a_rejection_the_node_waits_for_the_cache_to_move() -> None:
    view = fleet(node("a", capacity={"cpu": 9}, reserved={"x": {"cpu": 1}}, index=7))
    ledger = Ledger()
    answer = allocation(ASKED, 1, view)
    with ledger.hold(answer.reservations) as hold:
        hold.rejected(["a"])
    assert ledger.overlay(view)["a"].contended
    with pytest.raises(ReservationContended):
        ledger.hold(answer.reservations)
    moved = fleet(node("a", capacity={"cpu": 9}, reserved={"x": {"cpu": 2}}, index=9))
    assert not ledger.overlay(moved)["a"].contended


def test_leaving_without_a_word_lets_go_because_the_index_protects() -> None:
    view = fleet(node("a", capacity={"cpu": 9}))
    ledger = Ledger()
    answer = allocation(ASKED, 1, view)
    with pytest.raises(RuntimeError), ledger.hold(answer.reservations):
        raise RuntimeError("the worker was cancelled")
    assert ledger.overlay(view) is view


def test_a_failed_hold_holds_nothing() -> None:
    view = fleet(*(node(name, capacity={"cpu": 1}) for name in ("a", "b")))
    ledger = Ledger()
    both = allocation(ASKED, 2, view)
    only_b = [change for change in both.reservations if change.node == "b"]
    with ledger.hold(only_b):
        with pytest.raises(ReservationContended):
            ledger.hold(both.reservations)
        assert not ledger.overlay(view)["a"].contended


def test_r17_a_fixed_port_is_reserved_once_a_node_and_its_holder_is_named() -> None:
    ports = {"http": Port(8077), "admin": Port(8077), "any": Port()}
    view = fleet(node("a"), node("b", reserved={"db~0": {"port/8077/tcp": 1.0}}, index=1))
    answer = allocation(request(ports=ports, per_node=2, numbered=True), 3, view)
    assert answer.assignments == (Assignment("a", "web~0"),)
    assert [each.record.instances for each in answer.reservations] == [{"web~0": {"port/8077/tcp": 1.0}}]
    assert "nearest miss b: port 8077/tcp is held by db~0" in answer.why


def test_r17_a_new_manifest_has_no_room_where_another_has_its_fixed_port() -> None:
    view = fleet(node("a", reserved={"db~0": {"port/8077/tcp": 1.0}}, index=1), node("b"))
    places = {("a", "web"), ("b", "web")}
    assert cramped(places, request(ports={"http": Port(8077)}), view) == {("a", "web")}
