"""Reservations as values, and the ledger that keeps the workers of one process from colliding (R17).

A reservation is a compare-and-set on ``reserved/<node>``. Until its effect is in the cache, another
worker of the same farm would plan from the old index and be rejected. The ledger knows which changes
are in flight and which were just committed, and applies both to the view. Losing the ledger costs a
rejected transaction, never a pod. A collision with another farm ends in a rejected transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType

import msgspec

from scheduler.errors import ReservationContended
from scheduler.fleet import used_amounts
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest
from store import codec, operations
from store.keys import Keys
from store.manifests import asked
from store.nodes import Reserved


class Ledger:
    """One a farm; not thread-safe, one event loop owns it."""

    def __init__(self) -> None:
        self._in_flight: set[str] = set()
        self._committed: dict[str, tuple[Reservation, int]] = {}
        self._outdated: dict[str, int] = {}

    def overlay(self, view: FleetView) -> FleetView:
        """The view with this process's own commits applied, and with busy nodes marked as contended.

        Commits that the view shows already are forgotten, which keeps the ledger small.
        """
        self._forget(view)
        touched = self._in_flight | self._committed.keys() | self._outdated.keys()
        changes = {}
        for name in touched & view.keys():
            node = view[name]
            if name in self._committed:
                change, index = self._committed[name]
                node = msgspec.structs.replace(
                    node,
                    reserved=change.record,
                    reserved_index=index,
                    reserved_raw=change.value(),
                    used=used_amounts(change.record),
                )
            contended = name in self._in_flight or name in self._outdated
            changes[name] = msgspec.structs.replace(node, contended=contended)
        return {**view, **changes} if changes else view

    def hold(self, reservations: Sequence[Reservation]) -> Hold:
        """Hold the nodes of one transaction's reservations, from planning until its outcome is known.

        Use the result as a context manager; its end lets the nodes go.

        Raises:
            ReservationContended: another worker holds one of the nodes, or the plan is older than the
                ledger's knowledge of one. No node is held then; plan again.
        """
        for change in reservations:
            node = change.node
            newest = self._committed[node][1] if node in self._committed else 0
            if node in self._in_flight or change.index < newest or self._outdated.get(node) == change.index:
                raise ReservationContended(
                    f"reservations of node {node!r} are being changed by another worker", node=node
                )
        nodes = {change.node: change for change in reservations}
        self._in_flight |= nodes.keys()
        return Hold(self, nodes)

    def settle(self, changes: Iterable[Reservation], index: int) -> None:
        """Record committed changes with the ModifyIndex of their transaction."""
        for change in changes:
            self._committed[change.node] = (change, index)
            self._outdated.pop(change.node, None)

    def distrust(self, changes: Iterable[Reservation]) -> None:
        """Mark nodes as outdated whose record has changed, until the view shows the change."""
        for change in changes:
            self._outdated[change.node] = change.index
            self._committed.pop(change.node, None)

    def forget(self) -> None:
        """Forget all commits, because the store was restored from a snapshot."""
        self._committed.clear()
        self._outdated.clear()

    def let_go(self, nodes: Collection[str]) -> None:
        """End the hold on some nodes."""
        self._in_flight.difference_update(nodes)

    def _forget(self, view: FleetView) -> None:
        for name, (_, index) in list(self._committed.items()):
            if name not in view or view[name].reserved_index >= index:
                del self._committed[name]
        for name, index in list(self._outdated.items()):
            if name not in view or view[name].reserved_index != index:
                del self._outdated[name]


class Hold:
    """The right of one transaction to change the reservations of its nodes."""

    def __init__(self, ledger: Ledger, changes: dict[str, Reservation]) -> None:
        self._ledger = ledger
        self._changes = changes

    def committed(self, index: int) -> None:
        """Note that the transaction was committed; ``index`` is the ModifyIndex in its response."""
        self._ledger.settle(self._changes.values(), index)

    def rejected(self, nodes: Collection[str]) -> None:
        """Note that it was rejected: the reservations of ``nodes`` had changed (``nodes`` may be empty)."""
        self._ledger.distrust(self._changes[node] for node in nodes if node in self._changes)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.let_go(self._changes.keys())


# Reservations as values: the changes of one plan to ``reserved/<node>``, and their operations (R17).
#
# A reservation is a whole new record with the index of the record that the plan was made from: of two
# plans from the same record only one can be committed. The record maps instances to amounts, so after
# an unknown outcome a reader can tell whether a change was made.


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
    """The node's record with the same map, one generation later, so that Consul refuses it if the record
    has changed.
    """
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
