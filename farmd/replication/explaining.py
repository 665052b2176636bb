"""Why each node does or does not get one more pod of a controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from farmd.explaining import judge
from scheduler.model import Explanation, Nominee, Preemption, Request
from store import manifests, selectors
from store.keys import Keys
from store.labels import pod_labels
from store.rcs import ReplicationController, ReplicationControllerStore

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


async def explain(client: ConsulClient, keys: Keys, rc: ReplicationController) -> Explanation:
    """The verdict on every node for one more pod.

    Raises:
        NotFound: the controller's manifest is gone. RecordInvalid: it does not decode.
        PlacementInvalid: its placement block cannot work.
    """
    manifest = await manifests.read(client, keys, rc.manifest)
    request = Request(
        manifest=manifest,
        selector=selectors.parse(rc.node_selector),
        owner=rc.id,
        labels=pod_labels(rc, manifest),
        replicas_per_node=rc.replicas_per_node,
    )
    listing = await ReplicationControllerStore(client, keys).list()
    records = {stored.record.id: stored.record for stored in listing.items}
    yielding = frozenset(one.id for one in records.values() if not one.disabled and not one.managed_by)
    found = await judge(client, keys, msgspec.structs.replace(request, yielding=yielding))
    names = {one.id: f"rc/{one.name}" for one in records.values()}
    return msgspec.structs.replace(found, preemption=_named(found.preemption, names))


def _named(preemption: Preemption | None, names: Mapping[str, str]) -> Preemption | None:
    """The same with the owners' names, as far as they have one."""
    if preemption is None:
        return None

    def named(nominee: Nominee) -> Nominee:
        victims = (msgspec.structs.replace(v, owner=names.get(v.owner, v.owner)) for v in nominee.victims)
        return msgspec.structs.replace(nominee, victims=tuple(victims))

    return msgspec.structs.replace(
        preemption,
        keep=tuple(map(named, preemption.keep)),
        add=tuple(map(named, preemption.add)),
        barred=tuple(names.get(owner, owner) for owner in preemption.barred),
    )
