"""Reservations as values: what one plan changes in ``reserved/<node>``, and the operation for it (R17).

A reservation is a whole new record, compared with the index that the view was read at: two plans
from the same reading cannot both succeed. It is a map from instance to amounts, so after an unknown
outcome a reader can tell whether this very change happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from scheduler.model import Assignment, FleetView
from store import codec, operations
from store.keys import Keys
from store.nodes import Reserved


class Reservation(msgspec.Struct, frozen=True):
    """The new reservations of one node, planned from the record at ``index`` (0: there was none)."""

    node: str
    record: Reserved
    index: int
    raw: bytes = b""

    def operation(self, keys: Keys) -> operations.Operation:
        """Compare-and-set of the node's record; fields that this version does not know survive."""
        value = codec.rewrite(self.record, self.raw) if self.raw else codec.encode(self.record)
        return operations.cas(keys.reserved(self.node), value, self.index)


def reserve(
    assignments: Iterable[Assignment], amounts: Mapping[str, float], view: FleetView
) -> tuple[Reservation, ...]:
    """Add every assignment's amounts (units of the manifest) to its node; one change a node."""
    return change_reservations(view, add=assignments, amounts=amounts)


def release(assignments: Iterable[Assignment], view: FleetView) -> tuple[Reservation, ...]:
    """Take every assignment's instance off its node's map; nodes without it are left alone."""
    return change_reservations(view, remove=assignments)


def change_reservations(
    view: FleetView,
    *,
    add: Iterable[Assignment] = (),
    amounts: Mapping[str, float] = MappingProxyType({}),
    remove: Iterable[Assignment] = (),
) -> tuple[Reservation, ...]:
    """Removals and additions of one plan together, because a node's record changes once a transaction.

    Removing happens first, so an instance that is in both ends up with the new amounts. Nodes whose
    map would stay as it is, or that the view does not know, are left out.
    """
    wanted = {name: amount for name, amount in amounts.items() if amount > 0}
    books: dict[str, dict[str, dict[str, float]]] = {}

    def book(node: str) -> dict[str, dict[str, float]]:
        return books.setdefault(node, dict(view[node].reserved.instances))

    for place in remove:
        if place.node in view:
            book(place.node).pop(place.instance, None)
    for place in add:
        if wanted:
            book(place.node)[place.instance] = wanted
        elif place.instance in view[place.node].reserved.instances:
            del book(place.node)[
                place.instance
            ]  # a version that asks for nothing frees what the old one held
    return tuple(
        Reservation(
            node,
            Reserved(instances=instances, generation=view[node].reserved.generation + 1),
            view[node].reserved_index,
            view[node].reserved_raw,
        )
        for node, instances in sorted(books.items())
        if instances != view[node].reserved.instances
    )


def reservation_operations(reservations: Sequence[Reservation], keys: Keys) -> list[operations.Operation]:
    """The operations of several reservations, in order of node."""
    return [change.operation(keys) for change in sorted(reservations, key=lambda change: change.node)]
