"""Reservations as values: what one plan changes in ``reserved/<node>``, and the operation for it (R17).

A reservation is a whole new record, compared with the index that the view was read at: two plans
from the same reading cannot both succeed. It is a map from instance to amounts, so after an unknown
outcome a reader can tell whether this very change happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scheduler.model import Assignment, FleetView, Request
from store import codec, operations
from store.keys import Keys
from store.manifests import asked
from store.nodes import Reserved

_Book = dict[str, dict[str, float]]
"""What each instance of a node has reserved, while one plan changes it."""


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


def reserve(assignments: Iterable[Assignment], request: Request, view: FleetView) -> tuple[Reservation, ...]:
    """Add what every assignment's pod asks for to its node; one change a node."""
    return change_reservations(view, add=assignments, request=request)


def release(assignments: Iterable[Assignment], view: FleetView) -> tuple[Reservation, ...]:
    """Take every assignment's instance off its node's map; nodes without it are left alone."""
    return change_reservations(view, remove=assignments)


def change_reservations(
    view: FleetView,
    *,
    add: Iterable[Assignment] = (),
    request: Request | None = None,
    remove: Iterable[Assignment] = (),
) -> tuple[Reservation, ...]:
    """Removals and additions of one plan together, because a node's record changes once a transaction.

    Removing happens first, so an instance that is in both ends up with the new amounts: those of
    ``request``. Nodes whose map would stay as it is, or that the view does not know, are left out.
    """
    books: dict[str, _Book] = {}
    for place in remove:
        if place.node in view:
            _book(books, view, place.node).pop(place.instance, None)
    for place in add:
        wanted = asked(request.manifest) if request is not None else {}
        book = _book(books, view, place.node)
        if wanted:
            book[place.instance] = wanted
        else:
            book.pop(place.instance, None)  # a version that asks for nothing frees what the old one held
    return _changes(books, view)


def _book(books: dict[str, _Book], view: FleetView, node: str) -> _Book:
    if node not in books:
        books[node] = dict(view[node].reserved.instances)
    return books[node]


def _changes(books: Mapping[str, _Book], view: FleetView) -> tuple[Reservation, ...]:
    """The nodes whose record is another one now."""
    found = []
    for name, book in sorted(books.items()):
        node = view[name]
        if book != node.reserved.instances:
            record = Reserved(book, node.reserved.generation + 1)
            found.append(Reservation(name, record, node.reserved_index, node.reserved_raw))
    return tuple(found)


def reservation_operations(reservations: Sequence[Reservation], keys: Keys) -> list[operations.Operation]:
    """The operations of several reservations, in order of node."""
    return [change.operation(keys) for change in sorted(reservations, key=lambda change: change.node)]
