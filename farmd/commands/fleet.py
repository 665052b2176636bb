"""The fleet as the scheduler sees it, in one read, for questions of people.

The farms' own copies are not at hand here: what they recorded of lost nodes is read, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from farmd import overview
from farmd.overview import PodRow
from scheduler.fleet import node_views
from scheduler.model import FleetView
from store.keys import Keys
from store.listing import records
from store.nodes import NodeListing, NodeStore, Reserved
from store.pods import Pod, PodKey

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


async def read(
    client: ConsulClient, keys: Keys, own: Collection[str] | None = None
) -> tuple[FleetView, list[PodRow]]:
    """A view of all nodes, and all pods; pods bear the ids of their owners, or with ``own`` others' names.

    Refusals name other owners; people know those by name and not by id.
    """
    return await seen(client, keys, await NodeStore(client, keys).list(), own)


async def seen(
    client: ConsulClient, keys: Keys, listing: NodeListing, own: Collection[str] | None = None
) -> tuple[FleetView, list[PodRow]]:
    """The same, for callers that have read the nodes."""
    pods = (await overview.pods(client, keys)).placed

    def owner(pod: PodRow) -> str:
        return pod.owner if own is None or pod.owner in own else pod.owner_name or pod.owner

    view = node_views(
        {name: node.record for name, node in listing.items.items() if node.node is not None},
        {name: node.agent for name, node in listing.items.items() if node.agent is not None},
        # What does not decode counts as nothing reserved; the farms report it.
        (await records(client, keys.tree("reserved"), Reserved)).named,
        {PodKey(owner(row), row.node, row.instance): Pod(row.manifest, row.labels) for row in pods},
        await overview.lost(client, keys),
    )
    return view, pods
