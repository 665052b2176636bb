"""The fleet as the scheduler sees it, read once, for questions of people.

The farms' own copies are not at hand here: what they recorded of lost nodes is read, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farmd import overview
from farmd.overview import PodRow
from scheduler.fleet import node_views
from scheduler.model import FleetView
from store.entry import Stored
from store.keys import Keys
from store.named import records
from store.nodes import NodeListing, NodeStore, Reserved
from store.pods import Pod, PodKey

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes and pods of one moment; ``pods`` bear the ids of their owners."""

    nodes: NodeListing
    pods: Sequence[PodRow]
    reserved: Mapping[str, Stored[Reserved]]
    lost: Mapping[str, float]

    def view(self, own: Collection[str] | None = None) -> FleetView:
        """All nodes as the scheduler sees them, with the names of all owners but ``own``; None: with ids.

        Refusals name other owners; people know those by name and not by id.
        """

        def owner(pod: PodRow) -> str:
            return pod.owner if own is None or pod.owner in own else pod.owner_name or pod.owner

        listing = self.nodes.items
        return node_views(
            {name: node.record for name, node in listing.items() if node.node is not None},
            {name: node.agent for name, node in listing.items() if node.agent is not None},
            # What does not decode counts as nothing reserved; the farms report it.
            self.reserved,
            {PodKey(owner(row), row.node, row.instance): Pod(row.manifest, row.labels) for row in self.pods},
            self.lost,
        )


async def read(client: ConsulClient, keys: Keys) -> Fleet:
    """The fleet as it is now."""
    return Fleet(
        nodes=await NodeStore(client, keys).list(),
        pods=(await overview.pods(client, keys)).placed,
        reserved=(await records(client, keys.tree("reserved"), Reserved)).named,
        lost=await overview.lost(client, keys),
    )
