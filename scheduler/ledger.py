"""The reservation ledger of one process: keeps its own workers from colliding over a node (R17).

A reservation is a compare-and-set on ``reserved/<node>``. Until its effect is in the cache, another
worker of the same farm would plan from the old index and be rejected. The ledger knows which changes
are in flight and which were just committed, and applies both to the view. Losing the ledger costs a
rejected transaction, never a pod. A collision with another farm ends in a rejected transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import TracebackType

import msgspec

from scheduler.errors import ReservationContended
from scheduler.fleet import used_amounts
from scheduler.model import FleetView
from scheduler.reservations import Reservation


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
