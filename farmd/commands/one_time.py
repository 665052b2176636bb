"""Writes a one-time key for one request to a node's agent (R36), and audits what people do in pods (R42)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from farmd.commands.mutation import Call, Change, audited, registered
from store import access, codec, operations, registration
from store.access import Exec, OneTime
from store.errors import InputInvalid

MOST_LETTERS = 8192
"""Of a command, which the key's record and the audit log hold."""


async def header(
    call: Call, node: str, instance: str, path: str, params: Mapping[str, str], purpose: str = access.LOGS
) -> dict[str, str]:
    """The header of a GET to an agent, good for half a minute and one request.

    Raises:
        AccessDenied: the caller may write no keys of that purpose.
    """
    key, record = await _made(call, instance, path, params)
    place = call.keys.access(purpose, node, access.ident(key))
    await call.client.put(place, codec.encode(record), cas=0)
    return {access.HEADER: key}


async def _made(
    call: Call, instance: str, path: str, params: Mapping[str, str], wanted: Exec | None = None
) -> tuple[str, OneTime]:
    key, now = access.made(), call.clock.now()
    record = OneTime(
        cluster=await registration.cluster_id(call.client, call.keys),
        instance=instance,
        request=access.asked("GET", path, params),
        issued=now,
        expires=now + access.LIFE_SECONDS,
        by=call.actor,
        reason=call.reason,
        exec=wanted,
    )
    return key, record


class Granted(NamedTuple):
    """What a person may do once in a pod: the header of the request, and the change that was audited."""

    headers: dict[str, str]
    change: Change


async def grant(call: Call, node: str, instance: str, path: str, action: str, wanted: Exec) -> Granted:
    """A key for a command in a pod, or for connections to its port, written with its audit record.

    Raises:
        AccessDenied: the caller may not: ``acl/exec.hcl`` has the rules. InputInvalid: it is too long.
    """
    if sum(map(len, wanted.command)) > MOST_LETTERS:
        raise InputInvalid(
            f"command: found more than {MOST_LETTERS} letters, expected fewer", field="command"
        )
    wanted = msgspec.structs.replace(wanted, action=action)
    key, record = await _made(call, instance, path, {}, wanted)
    pod = f"{node}/{instance}"
    change = Change("pods", pod, pod, action, after=access.told(wanted), object=f"pod/{pod}")
    place = call.keys.access(access.EXEC, node, access.ident(key))
    await call.client.transaction(
        [
            await registered(call),
            operations.create(place, codec.encode(record)),
            audited(call, change),
        ]
    )
    return Granted({access.HEADER: key}, change)


async def ended(call: Call, change: Change, **how: int) -> None:
    """Audit how it ended, where the agent does not note that.

    Raises:
        StoreError: the record was not written.
    """
    done = replace(change, action=f"{change.action}-ended", after={**change.after, **how})
    await call.client.transaction([audited(call, done)])
