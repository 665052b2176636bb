"""Rankings of nodes that are kept from one question to the next, and follow the nodes that changed.

Most questions are for pods without rules across nodes, at most one a node. Whether a node takes such pods at
all, and how it scores, is then the same for all owners with the same selector, placement block and resources.
A question costs a look at which nodes changed and at the best places, and judges no other node. The answer is
that of judging all nodes: what depends on the owner is judged for each place.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator

from scheduler.feasibility import room_reasons, standing_reasons
from scheduler.model import Assignment, FleetView
from scheduler.rank import DIGITS, own_points
from scheduler.requirement import Requirement
from store import codec

# A ranking of 2,000 nodes takes 0.3 MB.
KEPT = 8

_Entry = tuple[float, str]  # negated score and name, the best first


def rankable(requirement: Requirement) -> bool:
    """Whether placing one of these pods changes the score of no other place, as far as the request says."""
    return requirement.exclusive and not requirement.request.replaces


class Rankings:
    """The rankings of the requests that were asked about last; not thread-safe."""

    def __init__(self) -> None:
        self._view: FleetView = {}
        self._kept: dict[object, _Ranking] = {}

    def places(self, requirement: Requirement, count: int, view: FleetView) -> list[Assignment]:
        """Up to ``count`` places for a request that is ``rankable`` and has no rules across nodes."""
        self._follow(view)
        ranking = self._ranking(requirement)
        ranking.refresh(view)
        request, pod_id = requirement.request, requirement.pod_id
        places: list[Assignment] = []
        for _, name in ranking.ordered(requirement, view):
            if len(places) >= count:
                break
            if request.among is not None and name not in request.among:
                continue
            if not room_reasons(requirement, view[name]):
                places.append(Assignment(name, pod_id))
        return places

    def _follow(self, view: FleetView) -> None:
        before, self._view = self._view, view
        if before is view:
            return
        changed = {name for name, node in view.items() if before.get(name) is not node}
        changed |= before.keys() - view.keys()
        for ranking in self._kept.values():
            ranking.stale |= changed

    def _ranking(self, requirement: Requirement) -> _Ranking:
        """The ranking of the requests that are like this one; the one that was not used for longest goes."""
        manifest, selector = requirement.request.manifest, requirement.request.selector
        placement = codec.encode(manifest.placement)
        shape = (selector, placement, requirement.amounts, requirement.features, manifest.system)
        ranking = self._kept.pop(shape, None) or _Ranking(requirement, set(self._view))
        self._kept[shape] = ranking
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return ranking


class _Ranking:
    """The nodes that may take such pods, in order; ``stale`` are those that changed since."""

    __slots__ = ("_order", "_requirement", "stale")

    def __init__(self, requirement: Requirement, names: set[str]) -> None:
        # Not exclusive: what a node has reserved under this very pod's name is not given back to it.
        self._requirement = dataclasses.replace(requirement, exclusive=False)
        self._order: list[_Entry] = []
        self.stale = names

    def refresh(self, view: FleetView) -> None:
        """Judge the nodes that changed."""
        if not self.stale:
            return
        nodes = [view[name] for name in self.stale if name in view]
        order = [entry for entry in self._order if entry[1] not in self.stale]
        order += [
            (-round(own_points(self._requirement, node), DIGITS), node.name)
            for node in nodes
            if not standing_reasons(self._requirement, node)
        ]
        order.sort()
        self._order, self.stale = order, set()

    def ordered(self, requirement: Requirement, view: FleetView) -> Iterator[_Entry]:
        """All entries, the best first. A node that has room reserved under the pod's name is scored anew."""
        if not requirement.amounts:
            return iter(self._order)
        pod_id = requirement.pod_id
        reserved = {name for name, node in view.items() if pod_id in node.reserved.instances}
        if not reserved:
            return iter(self._order)
        anew = sorted(
            (-round(own_points(requirement, view[name]), DIGITS), name)
            for _, name in self._order
            if name in reserved
        )
        return heapq.merge(anew, (entry for entry in self._order if entry[1] not in reserved))
