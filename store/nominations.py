"""Withdrawing the nominations of an owner that goes.

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


async def withdrawal(client: ConsulClient, keys: Keys, owner: str) -> tuple[Operation, ...]:
    """The operations that withdraw all nominations of an owner, one a node; usually none."""
    page = await client.list(keys.tree("reserved"), mode="consistent")
    return tuple(
        found
        for raw in page.items
        if not is_sentinel(raw.key) and (found := _without(Entry.of(raw), owner)) is not None
    )


def _without(entry: Entry, owner: str) -> Operation | None:
    """Fields that are not known here survive."""
    try:
        record = codec.decode(Reserved, entry.value, entry.key)
    except RecordInvalid:
        return None  # the doctor reports it, and the farms see no nomination in it either
    kept = {name: one for name, one in record.nominations.items() if one.owner != owner}
    if len(kept) == len(record.nominations):
        return None
    changed = msgspec.structs.replace(record, nominations=kept, generation=record.generation + 1)
    return operations.cas(
        entry.key, codec.rewrite(changed, entry.value), entry.modify_index, flags=entry.flags
    )
