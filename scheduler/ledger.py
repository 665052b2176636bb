"""The reservation ledger of one process: its own workers never collide over a node (R17).

A reservation is a compare-and-set on ``reserved/<node>``. Between planning one and seeing its effect
in the cache, another worker of the same farm would plan from the old index and be rejected. The
ledger knows what is in flight and what was just committed, and lays both over the view. It holds no
truth: forgetting all of it costs a rejected transaction, never a pod. Other farms are met by
rejection only.
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
        """The view with this process's own commits applied and nodes that must wait marked contended.

        What the view has caught up with is forgotten, so the ledger stays as small as what is under way.
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
        """Claim the nodes of one transaction's reservations, from planning until its outcome is known.

        Use it as a context manager; leaving it without ``committed`` lets the nodes go.

        Raises:
            ReservationContended: another worker holds one of them, or the plan is older than the
                ledger's knowledge of it. Nothing is held then; plan again.
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
        """Mark nodes whose record is known to have moved on, until the view shows it."""
        for change in changes:
            self._outdated[change.node] = change.index
            self._committed.pop(change.node, None)

    def forget(self) -> None:
        """The store was restored from a snapshot: no commit of before it counts."""
        self._committed.clear()
        self._outdated.clear()

    def let_go(self, nodes: Collection[str]) -> None:
        """End the claim on some nodes."""
        self._in_flight.difference_update(nodes)

    def _forget(self, view: FleetView) -> None:
        for name, (_, index) in list(self._committed.items()):
            if name not in view or view[name].reserved_index >= index:
                del self._committed[name]
        for name, index in list(self._outdated.items()):
            if name not in view or view[name].reserved_index != index:
                del self._outdated[name]


class Hold:
    """The claim on the nodes of one transaction."""

    def __init__(self, ledger: Ledger, changes: dict[str, Reservation]) -> None:
        self._ledger = ledger
        self._changes = changes

    def committed(self, index: int) -> None:
        """The transaction was committed; ``index`` is the ModifyIndex that its response shows."""
        self._ledger.settle(self._changes.values(), index)

    def rejected(self, nodes: Collection[str]) -> None:
        """It was rejected, because the reservations of ``nodes`` had changed (perhaps none of them)."""
        self._ledger.distrust(self._changes[node] for node in nodes if node in self._changes)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.let_go(self._changes.keys())
