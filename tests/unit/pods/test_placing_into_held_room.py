"""A pod that comes to room that it has already is compared with that room (R17)."""

from __future__ import annotations

from farmd.pods.changes import PodChange, reservations
from scheduler.fleet import node_view
from scheduler.model import PlacementRequest
from store.entry import Stored
from store.manifests import Manifest
from store.nodes import Node, Reserved
from store.pods import Pod
from store.reality import Intent
from store.selectors import parse

ASKED = {"cpu": 1.0}
REQUEST = PlacementRequest(
    manifest=Manifest(id="web", command=["x"], resources=ASKED), selector=parse(""), owner="rc1", labels={}
)
PLACE = PodChange("place", "n1", "web", Pod(manifest="a"), Intent(manifest="a", owner="rc1"))


def made(book: Reserved, change: PodChange = PLACE) -> list[tuple[int, Reserved]]:
    stored = Stored("reserved/n1", book, 7, b"")
    view = {"n1": node_view("n1", node=Node(capacity={"cpu": 2.0}), reserved=stored)}
    return [(one.index, one.record) for one in reservations(REQUEST, [change], view).values()]


def test_r17_room_that_is_held_already_is_compared_in_the_placements_transaction() -> None:
    assert made(Reserved({"web": ASKED}, 3)) == [(7, Reserved({"web": ASKED}, 4))]


def test_r17_new_room_is_reserved() -> None:
    assert made(Reserved({}, 3)) == [(7, Reserved({"web": ASKED}, 4))]


def test_a_replacement_in_place_that_asks_for_the_same_changes_no_reservation() -> None:
    replace = PodChange("replace", "n1", "web", PLACE.pod, PLACE.intent)
    assert made(Reserved({"web": ASKED}, 3), replace) == []
