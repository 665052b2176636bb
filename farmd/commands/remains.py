"""Reads what is left of an owner of pods that is being deleted: pods, processes, room that a move reserved,
and services that name it.
"""

from __future__ import annotations

from farmd.commands.mutation import Call
from store import codec, operations
from store.errors import NotRegistered, RecordInvalid
from store.keys import is_sentinel
from store.named import records
from store.nodes import Reserved
from store.operations import Operation
from store.reality import Reality
from store.services import ServiceStore, reference, without
from store.work import Work

# They share the transaction of a deletion with everything that goes; the doctor finds those beyond.
MOST_SERVICES = 30


async def pods_left(call: Call, owner: str) -> int:
    """How many pods an owner has now, by a consistent read (R15).

    Raises:
        NotRegistered: nothing was found, and no sentinel proves that there is nothing (R20).
    """
    page = await call.client.keys(call.keys.pods(owner), mode="consistent")
    if not page.items:
        sentinel = call.keys.sentinel(call.keys.tree("pods"))
        if await call.client.read(sentinel, mode="consistent") is None:
            raise NotRegistered(f"pods of {owner}: found no sentinel, expected {sentinel}", key=sentinel)
    return sum(not is_sentinel(key) for key in page.items)


async def processes_left(call: Call, owner: str) -> int:
    """How many processes nodes still run for an owner, as their agents reported last."""
    # What does not decode the doctor reports, and its agent writes it again.
    found = await records(call.client, call.keys.tree("reality"), Reality, "consistent")
    return sum(stored.record.owner == owner for stored in found.items)


async def move_room(call: Call, kind: str, item: str) -> tuple[Operation, ...]:
    """The operations that give back the room that a move reserved and no pod uses (W16); empty without
    such room.
    """
    entry = await call.client.read(call.keys.work(kind, item), mode="consistent")
    try:
        work = codec.decode(Work, entry.value, entry.key) if entry is not None else Work()
        if work.transfer is None:
            return ()
        node, instance = work.transfer.new
        entry = await call.client.read(call.keys.reserved(node), mode="consistent")
        if entry is None or instance not in (book := codec.stored(Reserved, entry)).record.instances:
            return ()
    except RecordInvalid:
        return ()  # the room is unknown; the doctor finds room without an owner
    intent = call.keys.intent(node, instance)
    if await call.client.read(intent, mode="consistent") is not None:
        return ()
    value = codec.rewrite(book.record.without([instance]), book.raw)
    return (
        operations.check_not_exists(intent),
        operations.cas(book.key, value, book.index, flags=book.flags),
    )


async def served(call: Call, kind: str, item: str) -> dict[str, Operation]:
    """The writes that take an owner out of services that name others, too (R14), by the services' names."""
    services = ServiceStore(call.client, call.keys)
    found = without(await services.list(), reference(kind, item))[:MOST_SERVICES]
    return {stored.record.name: services.activate(stored, active) for stored, active in found}
