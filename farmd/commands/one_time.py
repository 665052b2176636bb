"""Writes a one-time key for one request to a node's agent (R36)."""

from __future__ import annotations

from collections.abc import Mapping

from farmd.commands.mutation import Call
from store import access, codec, registration
from store.access import OneTime


async def header(
    call: Call, node: str, instance: str, path: str, params: Mapping[str, str]
) -> dict[str, str]:
    """The header of a GET for the logs of a pod, good for half a minute and one request.

    Raises:
        AccessDenied: the caller may write no keys for logs.
    """
    key, now = access.made(), call.clock.now()
    record = OneTime(
        cluster=await registration.cluster_id(call.client, call.keys),
        instance=instance,
        request=access.asked("GET", path, params),
        issued=now,
        expires=now + access.LIFE_SECONDS,
        by=call.actor,
        reason=call.reason,
    )
    place = call.keys.access(access.LOGS, node, access.ident(key))
    await call.client.put(place, codec.encode(record), cas=0)
    return {access.HEADER: key}
