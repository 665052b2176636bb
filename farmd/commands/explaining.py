"""Explains why each node gets a pod or not, by the scheduler's own judgement.

It uses the same pure functions as the farms, over one read of the fleet (``farmd.commands.fleet``), so it
cannot differ from what happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.commands import fleet
from farmd.commands.bodies import manifest_of
from farmd.commands.edits import S
from farmd.commands.noun import Noun
from farmd.commands.placing import T
from scheduler.decide import explanation
from scheduler.model import Explanation
from store import manifests
from store.keys import Keys

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
    request = noun.pods.request(record, manifest)
    found = await fleet.read(client, keys)
    return explanation(request, found.view({request.owner, *request.replaces}))
