"""Preemption as a pure question: who goes, where room is made, and whose room it is then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from scheduler.decide import allocation
from scheduler.model import Assignment, FleetView, NodeView, Nominee, PodView, Request, Victim
from scheduler.preemption import preempt
from scheduler.reservations import change_reservations, nominate
from scheduler.selector import LabelSelectorScheduler
from scheduler.victims import clearing, victims
from store.manifests import Spread
from store.nodes import Nomination, Reserved
from tests.fleets import OWNER, fleet, node, request

LOW, MID, HIGH = 20, 50, 80
OTHERS = frozenset({"batch", "site", "late"})


def stands(name: str, capacity: float, pods: Mapping[str, tuple[str, int, float]], **fields: Any) -> NodeView:
    """A node whose pods are (owner, priority, cpu) by instance."""
    zone = fields.pop("zone", "")
    made = node(
        name,
        {"zone": zone} if zone else {},
        capacity={"cpu": capacity},
        pods={instance: PodView(owner) for instance, (owner, _, _) in pods.items()},
        reserved={instance: {"cpu": cpu} for instance, (_, _, cpu) in pods.items() if cpu},
        index=7,
        **fields,
    )
    ranks = {i: p for i, (_, p, cpu) in pods.items() if p != MID and cpu}
    return msgspec.structs.replace(made, reserved=msgspec.structs.replace(made.reserved, priorities=ranks))


def waiting(made: NodeView, **nominations: tuple[str, int, float]) -> NodeView:
    """The node with nominations of (owner, priority, cpu), the first one longest."""
    book = msgspec.structs.replace(
        made.reserved,
        nominations={
            name: Nomination(owner=owner, priority=priority, amounts={"cpu": cpu}, since=float(at))
            for at, (name, (owner, priority, cpu)) in enumerate(nominations.items(), 1)
        },
    )
    return msgspec.structs.replace(made, reserved=book)


def asks(cpu: float, priority: int = HIGH, **fields: Any) -> Request:
    """A question of ``OWNER`` for pods of a priority."""
    asked = request(resources={"cpu": cpu} if cpu else {}, yielding=OTHERS, **fields)
    return msgspec.structs.replace(asked, manifest=msgspec.structs.replace(asked.manifest, priority=priority))


def gone(made: NodeView) -> list[str]:
    return [victim.instance for victim in victims(made, OTHERS)]


@pytest.mark.parametrize(
    ("case", "capacity", "pods", "cpu", "expected"),
    [
        ("there is room already", 4, {"a": ("batch", LOW, 1)}, 1, []),
        ("the lowest goes", 2, {"a": ("batch", LOW, 1), "b": ("site", MID, 1)}, 1, ["a"]),
        ("nobody of equal priority", 2, {"a": ("batch", HIGH, 2)}, 1, []),
        ("nobody of higher priority", 2, {"a": ("batch", 90, 2)}, 1, []),
        ("as many as are needed", 3, dict.fromkeys("abc", ("batch", LOW, 1)), 2, ["b", "c"]),
        ("one large rather than many small", 4, {"a": ("batch", LOW, 3), "b": ("late", LOW, 1)}, 2, ["a"]),
        ("the smallest that suffices", 4, {"a": ("batch", LOW, 3), "b": ("late", LOW, 1)}, 1, ["b"]),
        ("a low one is spared again", 4, {"a": ("batch", LOW, 1), "b": ("site", MID, 3)}, 3, ["b"]),
        ("in vain is for nobody", 4, {"a": ("batch", LOW, 1), "b": ("site", HIGH, 3)}, 3, []),
        ("who has nothing gives nothing", 1, {"a": ("batch", LOW, 0), "b": ("site", MID, 1)}, 1, ["b"]),
        ("whose pods stay", 2, {"a": ("daemons", LOW, 1), "b": ("site", MID, 1)}, 1, ["b"]),
        ("never one's own", 2, {"a": (OWNER, LOW, 1), "b": ("site", MID, 1)}, 1, ["b"]),
    ],
)
def test_victims_of_one_nomination(
    case: str, capacity: float, pods: dict[str, tuple[str, int, float]], cpu: float, expected: list[str]
) -> None:
    assert gone(waiting(stands("n", capacity, pods), web=(OWNER, HIGH, cpu))) == expected, case


def test_nominations_share_what_their_victims_leave() -> None:
    made = stands("n", 4, {"a": ("batch", LOW, 3), "b": ("site", MID, 1)})
    assert gone(waiting(made, web=(OWNER, HIGH, 1), api=("other", 70, 2))) == ["a"]
    assert gone(waiting(made, web=(OWNER, HIGH, 3), api=("other", 70, 1))) == ["a", "b"]


def test_a_victim_of_a_nomination_that_cannot_be_served_stays() -> None:
    made = stands("n", 4, {"a": ("batch", LOW, 2), "b": ("site", 75, 2)})
    cleared = clearing(waiting(made, web=(OWNER, HIGH, 4), api=("other", 70, 2)), OTHERS)
    assert (cleared.served, [v.instance for v in cleared.victims]) == (frozenset({"web"}), ["a", "b"])
    cleared = clearing(waiting(made, web=("other", 70, 3), api=(OWNER, 60, 2)), OTHERS)
    assert (cleared.served, [v.instance for v in cleared.victims]) == (frozenset({"api"}), ["a"])


def test_what_was_left_behind_under_the_name_is_taken_over() -> None:
    made = stands("n", 2, {"a": ("batch", LOW, 1)})
    book = msgspec.structs.replace(made.reserved, instances={**made.reserved.instances, "web": {"cpu": 1.0}})
    made = msgspec.structs.replace(made, reserved=book, used={"cpu": 2.0})
    assert gone(waiting(made, web=(OWNER, HIGH, 1))) == []


# -- where room is made ----------------------------------------------------------------------------
def places(found: tuple[Nominee, ...]) -> list[str]:
    return [nominee.node for nominee in found]


def test_room_is_made_where_the_highest_victim_is_lowest_then_where_fewest_are() -> None:
    view = fleet(
        stands("n1", 2, {"a": ("site", MID, 2)}),
        stands("n2", 2, {"a": ("batch", LOW, 1), "b": ("late", LOW, 1)}),
        stands("n3", 2, {"a": ("batch", LOW, 2)}),
        stands("n4", 2, {"a": ("site", HIGH, 2)}),
    )
    found = preempt(asks(2), 4, view)
    assert places(found.add) == ["n3", "n2", "n1"]
    assert found.add[0] == Nominee("n3", "web", (Victim("a", "batch", LOW),))
    assert "1 nodes" not in found.why
    assert found.why


@pytest.mark.parametrize(
    ("case", "made"),
    [
        ("cordoned", stands("n1", 2, {"a": ("batch", LOW, 2)}, cordoned=True)),
        ("absent", stands("n1", 2, {"a": ("batch", LOW, 2)}, absent=True)),
        ("full", stands("n1", 2, {"a": ("batch", LOW, 2), "web": (OWNER, MID, 0)})),
        ("held", stands("n1", 2, {"a": ("batch", LOW, 2), "web": ("other", MID, 0)})),
        ("contended", msgspec.structs.replace(stands("n1", 2, {"a": ("batch", LOW, 2)}), contended=True)),
        ("too small", stands("n1", 1, {"a": ("batch", LOW, 1)})),
        ("it fits", stands("n1", 4, {"a": ("batch", LOW, 2)})),
    ],
)
def test_room_is_made_only_where_nothing_but_capacity_is_short(case: str, made: NodeView) -> None:
    assert preempt(asks(2), 1, fleet(made)).add == (), case


def test_pods_that_ask_for_nothing_need_no_room() -> None:
    assert preempt(asks(0), 1, fleet(stands("n1", 2, {"a": ("batch", LOW, 2)}))).add == ()


def test_who_keeps_pods_of_lower_priority_is_named() -> None:
    found = preempt(asks(2), 1, fleet(stands("n1", 2, {"a": ("disabled", LOW, 2)})))
    assert found.add == ()
    assert found.barred == ("disabled",)


def test_several_pods_may_wait_on_one_node_under_names_of_their_own() -> None:
    view = fleet(stands("n1", 4, {"a": ("batch", LOW, 2), "b": ("late", LOW, 2)}))
    found = preempt(asks(2, per_node=2), 3, view)
    assert [(one.node, one.instance) for one in found.add] == [("n1", "web~0"), ("n1", "web~1")]


def test_a_hard_spread_holds_for_room_that_is_made_too() -> None:
    view = fleet(
        *(
            stands(name, 2, {"a": ("batch", LOW, 2)}, zone=zone)
            for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b"))
        )
    )
    asked = asks(2, spread=[Spread("zone", hard=True)])
    assert sorted(places(preempt(asked, 2, view).add)) == ["n1", "n3"]


# -- nominations that stand ------------------------------------------------------------------------
def standing(made: NodeView, count: int = 1, **fields: Any) -> tuple[list[str], list[tuple[str, str]]]:
    found = preempt(asks(2, **fields), count, fleet(made))
    return places(found.keep), list(found.drop)


def test_a_nomination_stands_as_long_as_it_serves() -> None:
    made = stands("n1", 2, {"a": ("batch", LOW, 2)})
    assert standing(waiting(made, web=(OWNER, HIGH, 2))) == (["n1"], [])
    for case, other in {
        "another amount": waiting(made, web=(OWNER, HIGH, 1)),
        "another priority": waiting(made, web=(OWNER, MID, 2)),
        "cordoned": waiting(msgspec.structs.replace(made, cordoned=True), web=(OWNER, HIGH, 2)),
        "somebody higher needs it": waiting(made, web=(OWNER, HIGH, 2), api=("other", 90, 2)),
    }.items():
        assert standing(other) == ([], [("n1", "web")]), case


def test_a_nomination_stands_while_the_node_is_contended() -> None:
    made = msgspec.structs.replace(stands("n1", 2, {"a": ("batch", LOW, 2)}), contended=True)
    assert standing(waiting(made, web=(OWNER, HIGH, 2))) == (["n1"], [])


def test_no_more_nominations_stand_than_pods_are_missing() -> None:
    view = fleet(
        *(waiting(stands(name, 2, {"a": ("batch", LOW, 2)}), web=(OWNER, HIGH, 2)) for name in ("n1", "n2"))
    )
    found = preempt(asks(2), 1, view)
    assert (places(found.keep), found.add, found.drop) == (["n1"], (), (("n2", "web"),))


# -- whose room it is ------------------------------------------------------------------------------
def offered(view: FleetView, priority: int, owner: str) -> int:
    asked = msgspec.structs.replace(asks(1, priority), owner=owner)
    return len(allocation(asked, 1, view).assignments)


def test_room_that_is_made_is_taken_by_its_nominee_or_by_somebody_higher() -> None:
    view = fleet(waiting(stands("n1", 2, {"a": ("site", MID, 1)}), api=("first", HIGH, 1)))
    assert offered(view, MID, "lower") == 0
    assert offered(view, HIGH, "equal") == 0
    assert offered(view, 90, "higher") == 1
    assert offered(view, HIGH, "first") == 1


def test_of_equal_nominations_the_one_that_waits_longest_takes_the_room_there_is() -> None:
    """One pod has left, the other is kept by its floor: the room that there is stays nobody's otherwise."""
    made = waiting(stands("n1", 2, {"y": ("batch", LOW, 1)}), a1=("first", HIGH, 1), a2=("second", HIGH, 1))
    view = fleet(made)
    assert [offered(view, HIGH, owner) for owner in ("first", "second", "third")] == [1, 0, 0]
    assert offered(view, MID, "lower") == 0


def test_who_waits_still_leaves_room_to_those_of_higher_priority() -> None:
    made = waiting(stands("n1", 2, {"y": ("batch", LOW, 1)}), a1=("first", HIGH, 1), a2=("higher", 90, 1))
    assert [offered(fleet(made), HIGH, "first"), offered(fleet(made), 90, "higher")] == [0, 1]


def test_the_second_pod_of_an_owner_waits_for_its_own_turn() -> None:
    waits = {"web~0": (OWNER, HIGH, 1.0), "api": ("other", HIGH, 1.0), "web~1": (OWNER, HIGH, 1.0)}
    view = fleet(waiting(stands("n1", 2, {}), **waits))
    assert len(allocation(asks(1, per_node=2), 2, view).assignments) == 1
    assert offered(view, HIGH, "other") == 1


# -- records ---------------------------------------------------------------------------------------
def test_r17_whoever_comes_waits_no_longer_in_the_same_change() -> None:
    made = waiting(stands("n1", 4, {"a": ("batch", LOW, 1)}), web=(OWNER, HIGH, 1), api=("other", 70, 1))
    [change] = change_reservations(fleet(made), add=[Assignment("n1", "web")], request=asks(1))
    assert change.record.instances == {"a": {"cpu": 1}, "web": {"cpu": 1}}
    assert change.record.priorities == {"a": LOW, "web": HIGH}
    assert list(change.record.nominations) == ["api"]


def test_who_comes_under_another_name_than_nominated_waits_no_longer_either() -> None:
    made = waiting(stands("n1", 4, {}), **{"web~1": (OWNER, HIGH, 1)})
    [change] = change_reservations(fleet(made), add=[Assignment("n1", "web~0")], request=asks(1, per_node=2))
    assert change.record.nominations == {}


def test_a_priority_goes_with_its_pod_and_the_usual_one_is_not_written() -> None:
    made = stands("n1", 4, {"a": ("batch", LOW, 1)})
    [change] = change_reservations(fleet(made), remove=[Assignment("n1", "a")])
    assert change.record == Reserved(generation=1)
    [change] = change_reservations(fleet(made), add=[Assignment("n1", "web")], request=asks(1, MID))
    assert change.record.priorities == {"a": LOW}


def test_nobody_nominates_over_or_withdraws_what_is_somebody_elses() -> None:
    view = fleet(waiting(stands("n1", 4, {}), web=("other", HIGH, 1)))
    assert nominate(view, asks(1), add=[("n1", "web")], drop=[("n1", "web")], since=5.0) == ()
    [change] = nominate(view, asks(1), add=[("n1", "web~0")], since=5.0)
    assert change.record.nominations["web~0"] == Nomination(
        owner=OWNER, priority=HIGH, amounts={"cpu": 1}, since=5.0
    )
    assert change.record.generation == 1


# -- the scheduler ---------------------------------------------------------------------------------
async def test_the_built_in_scheduler_preempts_only_when_asked_and_only_for_what_fits_nowhere() -> None:
    view = fleet(stands("n1", 2, {"a": ("batch", LOW, 2)}))
    scheduler = LabelSelectorScheduler()
    asked = asks(2)
    assert (await scheduler.allocate_nodes(asked, 1, view)).preemption == preempt(asked, 1, view)
    off = msgspec.structs.replace(asked, yielding=None)
    assert await scheduler.allocate_nodes(off, 1, view) == allocation(off, 1, view)
    roomy = fleet(*view.values(), stands("n2", 2, {}))
    assert (await scheduler.allocate_nodes(asked, 1, roomy)).preemption is None
