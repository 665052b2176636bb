"""Reservations as values: what one plan changes in ``reserved/<node>``, and the operation for it (R17).

A reservation is a whole new record, compared with the index that the view was read at: two plans
from the same reading cannot both succeed. It is a map from instance to amounts, so after an unknown
outcome a reader can tell whether this very change happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from scheduler.model import Assignment, FleetView, Request
from store import codec, operations
from store.keys import Keys
from store.manifests import DEFAULT_PRIORITY, asked
from store.nodes import Nomination, Reserved

Place = tuple[str, str]
"""(node, instance)."""


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


@dataclass(slots=True)
class _Book:
    """A node's record while one plan changes it."""

    instances: dict[str, dict[str, float]]
    priorities: dict[str, int]
    nominations: dict[str, Nomination]

    @classmethod
    def of(cls, record: Reserved) -> _Book:
        return cls(dict(record.instances), dict(record.priorities), dict(record.nominations))

    def remove(self, instance: str) -> None:
        self.instances.pop(instance, None)
        self.priorities.pop(instance, None)

    def add(self, instance: str, amounts: dict[str, float], owner: str, priority: int) -> None:
        """A pod comes, or changes what it asks for; who comes where it was nominated waits no longer."""
        if instance not in self.instances or instance in self.nominations:
            self._arrived(instance, owner)
        self.instances[instance] = amounts
        self.priorities.pop(instance, None)
        if priority != DEFAULT_PRIORITY:
            self.priorities[instance] = priority

    def _arrived(self, instance: str, owner: str) -> None:
        own = sorted(name for name, one in self.nominations.items() if one.owner == owner)
        if own:
            del self.nominations[instance if instance in own else own[0]]

    def record(self, generation: int) -> Reserved:
        return Reserved(self.instances, generation, self.priorities, self.nominations)


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
            _book(books, view, place.node).remove(place.instance)
    for place in add:
        wanted = asked(request.manifest) if request is not None else {}
        book = _book(books, view, place.node)
        if wanted and request is not None:
            book.add(place.instance, wanted, request.owner, request.manifest.priority)
        else:
            book.remove(place.instance)  # a version that asks for nothing frees what the old one held
    return _changes(books, view)


def nominate(
    view: FleetView,
    request: Request,
    *,
    add: Iterable[Place] = (),
    drop: Iterable[Place] = (),
    since: float = 0.0,
) -> tuple[Reservation, ...]:
    """Nominations of a request's owner, new ones and such as are given up; one change a node.

    Somebody else's nomination is neither dropped nor replaced.
    """
    books: dict[str, _Book] = {}
    for node, instance in drop:
        if node in view and _nominee(view, node, instance) == request.owner:
            _book(books, view, node).nominations.pop(instance, None)
    amounts = asked(request.manifest)
    for node, instance in add:
        if node in view and _nominee(view, node, instance) in ("", request.owner):
            _book(books, view, node).nominations[instance] = Nomination(
                owner=request.owner, priority=request.manifest.priority, amounts=amounts, since=since
            )
    return _changes(books, view)


def _nominee(view: FleetView, node: str, instance: str) -> str:
    standing = view[node].reserved.nominations.get(instance)
    return standing.owner if standing is not None else ""


def _book(books: dict[str, _Book], view: FleetView, node: str) -> _Book:
    if node not in books:
        books[node] = _Book.of(view[node].reserved)
    return books[node]


def _changes(books: Mapping[str, _Book], view: FleetView) -> tuple[Reservation, ...]:
    """The nodes whose record is another one now."""
    found = []
    for name, book in sorted(books.items()):
        node = view[name]
        if book != _Book.of(node.reserved):
            record = book.record(node.reserved.generation + 1)
            found.append(Reservation(name, record, node.reserved_index, node.reserved_raw))
    return tuple(found)


def reservation_operations(reservations: Sequence[Reservation], keys: Keys) -> list[operations.Operation]:
    """The operations of several reservations, in order of node."""
    return [change.operation(keys) for change in sorted(reservations, key=lambda change: change.node)]
