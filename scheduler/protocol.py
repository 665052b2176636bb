"""The ``Scheduler`` protocol, which a worker calls between reading and deciding (p2 ``pkg/scheduler``).

It has p2's three calls, with answers that are values: a worker puts them into its snapshot, plans
from them, and commits reservations in its own fenced transaction. A scheduler writes nothing, so an
answer that is not used needs no clean-up (p2 leaked allocations: W16).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from scheduler.ledger import Reservation
from scheduler.model import Assignment, FleetView, PlacementRequest, Reason


class Eligibility(msgspec.Struct, frozen=True):
    """Answer of ``eligible_nodes``; both lists are in order of name.

    ``eligible`` nodes may take one more pod, or could do so if they had none of the owner's pods.
    ``retained`` nodes may keep their pods: a cordon, a taint or missing room keeps new pods out and
    removes no pod. ``refused`` holds all reasons against every node that is not eligible.
    """

    eligible: tuple[str, ...]
    retained: tuple[str, ...]
    refused: Mapping[str, tuple[Reason, ...]]


class Allocation(msgspec.Struct, frozen=True):
    """Answer of ``allocate_nodes``: at most ``count`` places in order of preference.

    ``missing`` is how many pods found no place; ``why`` then tells the reasons in one line, and
    ``refusals`` counts the nodes by reason code. ``reservations`` holds one operation a node, which
    must be in the same transaction as that node's pods (R17); empty without requested resources.
    """

    assignments: tuple[Assignment, ...]
    missing: int = 0
    why: str = ""
    refusals: Mapping[str, int] = {}
    reservations: tuple[Reservation, ...] = ()


class Deallocation(msgspec.Struct, frozen=True):
    """Answer of ``deallocate_nodes``: the places, and the changes that end their reservations."""

    assignments: tuple[Assignment, ...]
    reservations: tuple[Reservation, ...] = ()


class Scheduler(Protocol):
    """Chooses nodes for pods. Equal requests and views give equal answers."""

    async def eligible_nodes(self, request: PlacementRequest, view: FleetView) -> Eligibility:
        """Judge every node of the view, or those of ``request.among``.

        Raises:
            SchedulerError: no trustworthy answer; its text becomes the worker's blocked reason.
        """

    async def allocate_nodes(self, request: PlacementRequest, count: int, view: FleetView) -> Allocation:
        """Choose places for ``count`` more pods, or for fewer if there is no room.

        Raises:
            SchedulerError: no trustworthy answer.
        """

    async def deallocate_nodes(
        self, request: PlacementRequest, assignments: Collection[Assignment], view: FleetView
    ) -> Deallocation:
        """Give places back. A place without a reservation is ignored, so the call may be repeated.

        Raises:
            SchedulerError: no trustworthy answer.
        """
