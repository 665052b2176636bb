"""The taints and the capacity of a node, as people set them; called by the command line and over HTTP alike.

Both only concern new pods: none is removed. As in ``farmd.nodes.commands``, each function returns a
``Mutation`` that has written nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec

from farmd.commands.mutation import Call, Mutation
from farmd.nodes.commands import edit, view_of
from store import quantities
from store.errors import InputInvalid, refuse
from store.keys import valid_segment
from store.mistakes import shown
from store.nodes import Effect, Taint, is_host
from store.selectors import valid_key, valid_value

_EFFECTS = get_args(Effect)


def parse_taint(text: str) -> Taint:
    """The taint that ``key[=value][:effect]`` means; without an effect it is ``no-schedule``.

    Raises:
        InputInvalid: a bad key, value or effect.
    """
    key, value, effect = _parts(text)
    return Taint(key, value, effect or "no-schedule")  # type: ignore[arg-type]


async def taint(call: Call, name: str, taints: Sequence[Taint]) -> Mutation:
    """Set taints of a node; one with the same key and effect gets the new value.

    Raises:
        InputInvalid: two of the taints have one key and effect. NotFound: no such node.
        Locked: somebody holds its mutation lock.
    """
    wanted = {(each.key, each.effect): each for each in taints}
    if len(wanted) < len(set(taints)):
        raise InputInvalid("taints: found one key and effect twice with different values", field="taints")
    view = await view_of(call, name)
    kept = {(each.key, each.effect): each for each in view.record.taints}
    record = msgspec.structs.replace(view.record, taints=list({**kept, **wanted}.values()))
    return await edit(call, view, record, "node.taint")


async def untaint(call: Call, name: str, taints: Sequence[str]) -> Mutation:
    """Remove the taints that ``key[=value][:effect]`` mean: what the text leaves out may be anything.

    Raises:
        InputInvalid: a bad key, value or effect. NotFound: no such node.
        Locked: somebody holds its mutation lock.
    """
    gone = [_parts(text) for text in taints]
    view = await view_of(call, name)

    def goes(each: Taint) -> bool:
        return any(
            key == each.key and value in ("", each.value) and effect in ("", each.effect)
            for key, value, effect in gone
        )

    kept = [each for each in view.record.taints if not goes(each)]
    return await edit(call, view, msgspec.structs.replace(view.record, taints=kept), "node.untaint")


async def capacity(
    call: Call, name: str, amounts: Mapping[str, float], remove: Sequence[str] = ()
) -> Mutation:
    """Set what pods of a node may request in total; an amount that is removed is again what its agent states.

    Raises:
        InputInvalid: a bad name, or one that is both set and removed. NotFound: no such node.
        Locked: somebody holds its mutation lock.
    """
    for resource in (*amounts, *remove):
        valid_segment(resource, "capacity")
    quantities.check_bytes(amounts, "capacity")
    if both := sorted(amounts.keys() & set(remove)):
        raise InputInvalid(
            f"capacity: found {both[0]!r} both set and removed, expected one of both", field="capacity"
        )
    view = await view_of(call, name)
    kept = {resource: amount for resource, amount in view.record.capacity.items() if resource not in remove}
    record = msgspec.structs.replace(view.record, capacity={**kept, **amounts})
    return await edit(call, view, record, "node.capacity")


async def told(call: Call, name: str, address: str | None, signatures: str | None) -> Mutation:
    """Say where a node is reached and which policy of signatures it has; empty: as its agent says.

    Raises:
        InputInvalid: no host. NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    if address and not is_host(address):
        refuse("address", shown(address), "a host name or an IP address, without a scheme or a port")
    fields = {"address": address, "signatures": signatures}
    view = await view_of(call, name)
    wanted = {field: value for field, value in fields.items() if value is not None}
    return await edit(call, view, msgspec.structs.replace(view.record, **wanted), "node.set")


def _parts(text: str) -> tuple[str, str, str]:
    said, colon, effect = text.partition(":")
    key, _, value = said.partition("=")
    valid_key(key, "taints")
    valid_value(value, f"taints.{key}")
    if colon and effect not in _EFFECTS:
        raise InputInvalid(
            f"taints.{key}: found effect {effect!r}, expected {' or '.join(_EFFECTS)}", field="taints"
        )
    return key, value, effect
