"""Why each node does or does not have a pod of a daemon set: asked as its worker asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.commands.explaining import judge
from farmd.daemonset.eligibility import request
from scheduler.model import Explanation
from store import manifests
from store.daemonsets import DaemonSet
from store.keys import Keys

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


async def explain(client: ConsulClient, keys: Keys, daemonset: DaemonSet) -> Explanation:
    """The verdict on every node.

    Raises:
        NotFound: the daemon set's manifest is gone. RecordInvalid: it does not decode.
        PlacementInvalid: its placement block cannot work.
    """
    manifest = await manifests.read(client, keys, daemonset.manifest)
    return await judge(client, keys, request(daemonset, manifest))
