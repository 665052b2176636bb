"""Asks an owner's kind what a change of its record will do to its pods."""

from __future__ import annotations

from farmd.commands.bodies import manifest_of
from farmd.commands.fleet import Fleet
from farmd.commands.mutation import Call
from farmd.commands.outlook import Outlook, Standing
from farmd.commands.placing import Placing, T
from scheduler.errors import PlacementInvalid
from store import manifests
from store.errors import NotFound, RecordInvalid
from store.manifests import Manifest


async def forecast(call: Call, placing: Placing[T], wanted: T, pod: Manifest | None, fleet: Fleet) -> Outlook:
    """The outlook for a record as it will be; ``pod`` is its manifest where that is not stored yet."""
    try:
        manifest = pod or await manifests.read(call.client, call.keys, manifest_of(wanted))
        request = placing.request(wanted, manifest)
        own = {(row.node, row.instance): row for row in fleet.pods if row.owner == request.owner}
        return placing.outlook(wanted, Standing(own, fleet.view({request.owner}), request))
    except (NotFound, RecordInvalid, PlacementInvalid) as error:
        return Outlook(unplaced=(error.message,))
