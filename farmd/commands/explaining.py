"""Explains why each node gets a pod or not, by the scheduler's own judgement.

It uses the same pure functions as the farms, over one read of the fleet, so it cannot differ from what
happens (nodes whose loss only the farms recorded show as absent).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd import overview
from farmd.commands.bodies import manifest_of
from farmd.commands.noun import Noun, S
from farmd.commands.placing import T
from scheduler.decide import explanation
from scheduler.fleet import node_views
from scheduler.model import Explanation, Request
from store import codec, manifests
from store.entry import Entry, Stored
from store.errors import RecordInvalid
from store.keys import Keys, is_sentinel
from store.nodes import NodeStore, Reserved
from store.pods import Pod, PodKey

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


async def explain(client: ConsulClient, keys: Keys, noun: Noun[S, T], record: T) -> Explanation:
    """The verdict on every node for one more pod of an owner.

    Raises:
        NotFound: the owner's manifest is gone. RecordInvalid: it does not decode.
        PlacementInvalid: its placement block cannot work.
    """
    assert noun.pods is not None
    manifest = await manifests.read(client, keys, manifest_of(record))
    return await _judge(client, keys, noun.pods.request(record, manifest))


async def _judge(client: ConsulClient, keys: Keys, request: Request) -> Explanation:
    listing = await NodeStore(client, keys).list()
    pods = await overview.pods(client, keys)

    def owner(pod: overview.PodRow) -> str:
        # Refusals name other owners; people know those by name and not by id.
        own = pod.owner in {request.owner, *request.replaces}
        return pod.owner if own else pod.owner_name or pod.owner

    view = node_views(
        {name: node.record for name, node in listing.items.items() if node.node is not None},
        {name: node.agent for name, node in listing.items.items() if node.agent is not None},
        await _reserved(client, keys),
        {PodKey(owner(row), row.node, row.instance): Pod(row.manifest, row.labels) for row in pods.placed},
    )
    return explanation(request, view)


async def _reserved(client: ConsulClient, keys: Keys) -> dict[str, Stored[Reserved]]:
    page = await client.list(keys.tree("reserved"))
    found = {}
    for raw in page.items:
        if not is_sentinel(raw.key):
            try:
                found[keys.last_part(raw.key)] = codec.stored(Reserved, Entry.of(raw))
            except RecordInvalid:
                continue  # the farms report it; here it counts as nothing reserved
    return found
