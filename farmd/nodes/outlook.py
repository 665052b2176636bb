"""What becomes of a node's pods if it is drained, for ``--dry-run``: where each one goes, or why nowhere.

Each owner's pods are placed by themselves: pods of two owners may be told the same last place of a node.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from farmd import kinds
from farmd.commands.fleet import Fleet
from farmd.commands.mutation import Call
from farmd.commands.outlook import Outlook
from farmd.nodes import leftovers
from farmd.overview import PodRow
from scheduler.decide import allocation
from scheduler.errors import PlacementInvalid
from scheduler.model import FleetView
from scheduler.protocol import Allocation
from store import manifests
from store.errors import NotFound, RecordInvalid
from store.pods import Place


async def outlook(call: Call, node: str, fleet: Fleet) -> Outlook:
    """The outlook for a node that is drained."""
    view = fleet.view()
    if node in view:
        view = {**view, node: msgspec.structs.replace(view[node], drain="pods", cordoned=True)}
    by_owner: dict[str, list[PodRow]] = defaultdict(list)
    for row in fleet.pods:
        if row.node == node:
            by_owner[row.owner].append(row)
    removes: list[Place] = []
    moves: list[tuple[Place, Place]] = []
    unplaced: list[str] = []
    for owner_id, pods in sorted(by_owner.items()):
        owner = await leftovers.find_owner(call.client, call.keys, owner_id)
        places = [(row.node, row.instance) for row in pods]
        if owner.stays:
            unplaced.append(f"{owner.title}: {owner.stays}")
        elif not owner.moves:
            removes += places
        else:
            found = await _places(call, view, owner.kind, owner_id, len(places))
            moves += zip(places, ((goal.node, goal.instance) for goal in found.assignments), strict=False)
            unplaced += [f"{owner.title}: {found.why}"] if found.why else []
    return Outlook(removes=tuple(removes), moves=tuple(moves), unplaced=tuple(unplaced))


async def _places(call: Call, view: FleetView, family: str, owner_id: str, count: int) -> Allocation:
    """Places for pods of an owner, which may keep the others that it has."""
    noun = kinds.load(kinds.KINDS[family].asked)
    try:
        record = (await noun.records(call.client, call.keys).find(owner_id)).record
        manifest = await manifests.read(call.client, call.keys, record.manifest)
        return allocation(noun.pods.request(record, manifest), count, view)
    except (NotFound, RecordInvalid, PlacementInvalid) as error:
        return Allocation((), missing=count, why=error.message)
