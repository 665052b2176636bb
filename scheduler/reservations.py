"""Reservations as values: the changes of one plan to ``reserved/<node>``, and their operations (R17).

A reservation is a whole new record with the index of the record that the plan was made from: of two
plans from the same record only one can be committed. The record maps instances to amounts, so after
an unknown outcome a reader can tell whether a change was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest
from store import codec, operations
from store.keys import Keys
from store.manifests import asked
from store.nodes import Reserved

_Book = dict[str, dict[str, float]]
"""The amounts that each instance of a node has reserved, while one plan changes them."""


class Reservation(msgspec.Struct, frozen=True):
    """The new reservations of one node, planned from the record at ``index`` (0: there was none)."""

    node: str
    record: Reserved
    index: int
    raw: bytes = b""

    def operation(self, keys: Keys) -> operations.Operation:
        """Compare-and-set of the node's record; fields that this version does not know survive."""
        return operations.cas(keys.reserved(self.node), self.value(), self.index)

    def value(self) -> bytes:
        """The new record as it is written."""
        return codec.rewrite(self.record, self.raw) if self.raw else codec.encode(self.record)


def reserve(
    assignments: Iterable[Assignment], request: PlacementRequest, view: FleetView
) -> tuple[Reservation, ...]:
    """Add what every assignment's pod asks for to its node; one change a node."""
    return change_reservations(view, add=assignments, request=request)


def release(assignments: Iterable[Assignment], view: FleetView) -> tuple[Reservation, ...]:
    """Remove every assignment's instance from its node's map; nodes without it stay as they are."""
    return change_reservations(view, remove=assignments)


def change_reservations(
    view: FleetView,
    *,
    add: Iterable[Assignment] = (),
    request: PlacementRequest | None = None,
    remove: Iterable[Assignment] = (),
) -> tuple[Reservation, ...]:
    """Removals and additions of one plan together, because a transaction writes a node's record once.

    Removals come first, so an instance in both gets the amounts of ``request``. Nodes whose map stays
    the same, and nodes that are not in the view, are left out.
    """
    books: dict[str, _Book] = {}
    for place in remove:
        if place.node in view:
            _book(books, view, place.node).pop(place.instance, None)
    wanted = asked(request.manifest) if request is not None else {}
    for place in add:
        book = _book(books, view, place.node)
        if wanted:
            book[place.instance] = wanted
        else:
            book.pop(place.instance, None)  # a manifest without resources frees those of the former one
    return _changes(books, view)


def confirmed(node: NodeView) -> Reservation:
    """The node's record with the same map, one generation on: refused where the record has changed."""
    record = Reserved(dict(node.reserved.instances), node.reserved.generation + 1)
    return Reservation(node.name, record, node.reserved_index, node.reserved_raw)


def _book(books: dict[str, _Book], view: FleetView, node: str) -> _Book:
    if node not in books:
        books[node] = dict(view[node].reserved.instances)
    return books[node]


def _changes(books: Mapping[str, _Book], view: FleetView) -> tuple[Reservation, ...]:
    """The reservations of the nodes whose map has changed."""
    found = []
    for name, book in sorted(books.items()):
        node = view[name]
        if book != node.reserved.instances:
            record = Reserved(book, node.reserved.generation + 1)
            found.append(Reservation(name, record, node.reserved_index, node.reserved_raw))
    return tuple(found)
