"""Room that an owner gives back as it goes: its nominations, and the place that a move of its has reserved.

A nomination is somebody's wish for room (``store.nodes.Nomination``). What must never break: nothing else
of a record changes, and it is written only over what was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from store import codec, operations
from store.entry import Entry
from store.errors import RecordInvalid
from store.keys import Keys, is_sentinel
from store.nodes import Reserved
from store.operations import Operation

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

Place = tuple[str, str]
"""(node, instance)."""


class Returned(msgspec.Struct, frozen=True):
    """The operations that give room back, one a node, and what they give back; usually nothing."""

    operations: tuple[Operation, ...] = ()
    nominations: int = 0
    reservations: int = 0


async def returned(client: ConsulClient, keys: Keys, owner: str, place: Place | None = None) -> Returned:
    """Withdraw all nominations of an owner, and give back what ``place`` has reserved, which is its own."""
    page = await client.list(keys.tree("reserved"), mode="consistent")
    found = Returned()
    for raw in page.items:
        if not is_sentinel(raw.key):
            here = place[1] if place is not None and raw.key == keys.reserved(place[0]) else ""
            found = _with(found, Entry.of(raw), owner, here)
    return found


def _with(found: Returned, entry: Entry, owner: str, instance: str) -> Returned:
    """Fields that are not known here survive."""
    try:
        record = codec.decode(Reserved, entry.value, entry.key)
    except RecordInvalid:
        return found  # the doctor reports it, and the farms see nothing in it either
    wanted = {name: one for name, one in record.nominations.items() if one.owner != owner}
    nominations = len(record.nominations) - len(wanted)
    reservations = int(instance in record.instances)
    if not nominations and not reservations:
        return found
    changed = msgspec.structs.replace(
        record,
        instances={name: amounts for name, amounts in record.instances.items() if name != instance},
        priorities={name: rank for name, rank in record.priorities.items() if name != instance},
        nominations=wanted,
        generation=record.generation + 1,
    )
    value = codec.rewrite(changed, entry.value)
    write = operations.cas(entry.key, value, entry.modify_index, flags=entry.flags)
    return Returned(
        (*found.operations, write), found.nominations + nominations, found.reservations + reservations
    )
