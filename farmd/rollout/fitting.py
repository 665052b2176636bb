"""Where a pod of the new version may stand in place of an old one: pure.

The farm that acts and the dry run ask the same question and read the answer in the same way.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from scheduler.feasibility import cramped
from scheduler.model import FleetView, PlacementRequest
from scheduler.protocol import Eligibility
from store.pods import Place


def question(request: PlacementRequest, old: str, leaving: Collection[Place]) -> PlacementRequest:
    """The request for a pod in place of each of these pods of the owner ``old``."""
    nodes = frozenset(node for node, _ in leaving)
    return msgspec.structs.replace(
        request, among=nodes, replaces=frozenset({old}), leaving=frozenset(leaving)
    )


def places(asked: PlacementRequest, answer: Eligibility, view: FleetView) -> frozenset[Place]:
    """The places whose nodes may run the pod and have room for it. A cordoned node keeps its pods."""
    kept = {*answer.eligible, *answer.retained}
    here = frozenset(place for place in asked.leaving if place[0] in kept)
    return here - cramped(here, asked, view)
