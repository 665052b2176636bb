"""The ``Scheduler`` protocol: what a worker awaits between reading and deciding (p2 ``pkg/scheduler``).

p2's three calls, with answers that are values: a worker puts them into its snapshot, plans from
them, and commits reservations in its own fenced transaction. A scheduler writes nothing itself, so
an answer that is never used leaves nothing behind (p2 leaked allocations: W16).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from scheduler.model import Assignment, FleetView, Reason, Request
from scheduler.reservations import Reservation


class Eligibility(msgspec.Struct, frozen=True):
    """Answer of ``eligible_nodes``, both kinds of node in order of name.

    ``eligible`` nodes may take one more pod, or hold one of the owner's and would otherwise.
    ``retained`` nodes may keep what they have: a cordon, a taint or missing room keeps new pods out
    and sends no standing one away. ``refused`` holds all reasons of every node that is not eligible.
    """

    eligible: tuple[str, ...]
    retained: tuple[str, ...]
    refused: Mapping[str, tuple[Reason, ...]]


class Allocation(msgspec.Struct, frozen=True):
    """Answer of ``allocate_nodes``: at most ``count`` places in order of preference.

    ``missing`` is how many found no place, ``why`` then says so in one line and ``refusals`` counts
    the nodes by reason code. ``reservations`` are one operation a node and must travel in the same
    transaction as that node's pods (R17); empty when the manifest asks for no resources.
    """

    assignments: tuple[Assignment, ...]
    missing: int = 0
    why: str = ""
    refusals: Mapping[str, int] = {}
    reservations: tuple[Reservation, ...] = ()


class Deallocation(msgspec.Struct, frozen=True):
    """Answer of ``deallocate_nodes``: the reservations that end with those pods."""

    assignments: tuple[Assignment, ...]
    reservations: tuple[Reservation, ...] = ()


class Scheduler(Protocol):
    """Says where pods may and should go. Equal request and view give an equal answer."""

    async def eligible_nodes(self, request: Request, view: FleetView) -> Eligibility:
        """Judge every node of the view, or those of ``request.among``.

        Raises:
            SchedulerError: no trustworthy answer; the worker is blocked with its text as the reason.
        """

    async def allocate_nodes(self, request: Request, count: int, view: FleetView) -> Allocation:
        """Choose places for ``count`` more pods; fewer when there is no room, which is no error.

        Raises:
            SchedulerError: no trustworthy answer.
        """

    async def deallocate_nodes(
        self, request: Request, assignments: Collection[Assignment], view: FleetView
    ) -> Deallocation:
        """Give places back. Places without a reservation are fine: giving back twice changes nothing.

        Raises:
            SchedulerError: no trustworthy answer.
        """
