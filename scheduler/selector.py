"""The scheduler that farms use: node selector, feasibility and ranking, all in this process.

p2's bundled scheduler matched only node labels and could not allocate (W25); this one answers all
three calls from the view alone.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.decide import allocation, deallocation, eligibility
from scheduler.model import Assignment, FleetView, PlacementRequest
from scheduler.protocol import Allocation, Deallocation, Eligibility
from scheduler.ranking import Rankings


class LabelSelectorScheduler:
    """Satisfies ``Scheduler`` with pure functions; its calls are asynchronous only for the protocol."""

    def __init__(self) -> None:
        self._rankings = Rankings()

    async def eligible_nodes(self, request: PlacementRequest, view: FleetView) -> Eligibility:
        """See ``scheduler.decide.eligibility``."""
        return eligibility(request, view)

    async def allocate_nodes(self, request: PlacementRequest, count: int, view: FleetView) -> Allocation:
        """See ``scheduler.decide.allocation``."""
        return allocation(request, count, view, self._rankings)

    async def deallocate_nodes(
        self, request: PlacementRequest, assignments: Collection[Assignment], view: FleetView
    ) -> Deallocation:
        """See ``scheduler.decide.deallocation``."""
        return deallocation(request, assignments, view)
