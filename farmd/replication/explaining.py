"""Why each node does or does not get one more pod of a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.commands.explaining import judge
from scheduler.model import Explanation, Request
from store import manifests, selectors
from store.keys import Keys
from store.labels import pod_labels
from store.rcs import ReplicationController

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
    return await judge(client, keys, request)
