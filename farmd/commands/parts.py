"""Records that others change: parts, such as the owner of a service's pods, and what a rollout manages.

Whoever changes the whole changes its parts with it, and a manager changes what it manages. What a person
changed besides would be lost with their next change, or fail it (R14).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from farmd import overview
from farmd.commands.mutation import Call
from farmd.kinds import KINDS, title, ways
from store import codec, operations
from store.errors import Conflict, NotFound, NotRegistered, RecordInvalid
from store.families import FAMILIES
from store.keys import is_sentinel
from store.named import records
from store.nodes import Reserved
from store.operations import Operation
from store.reality import Reality
from store.services import ServiceStore, reference, without
from store.work import Work

STATED = "change its file, or remove the field there; --force lasts until a farm checks again"
"""What a person does whose edit of a stated field is refused."""


def opens(record: Any) -> bool:
    """Whether a record is part of something that leaves single fields of it to others."""
    family = getattr(record, "part_of", "").partition("/")[0]
    return family in FAMILIES and FAMILIES[family].opens


async def said_by(call: Call, whole: str) -> str:
    """The whole that sets the fields of its parts, with the person who set them last and the time."""
    family, _, name = whole.partition("/")
    kind = KINDS.get(family)
    if kind is None:
        return f"is managed by {whole}, which this version does not know"
    told = await kind.author()(call, name) if kind.author else ""
    return f"is managed by {kind.one} {name}{f' ({told})' if told else ''}"


async def refuse_stated(call: Call, kind: str, record: Any, fields: Iterable[str]) -> None:
    """Refuse an edit of fields that the file of an app states; ``fields`` are those of the record's own file.

    Raises:
        Conflict: naming the fields, the app whose file says them, its revision and who applied that.
    """
    if not opens(record) or call.force or record.part_of == call.part_of:
        return
    family = record.part_of.partition("/")[0]
    changed = {re.split(r"[.\[]", field)[0] for field in fields}
    if stated := sorted(changed - FAMILIES[family].leaves - set(record.open)):
        text = f"{', '.join(stated)} of {title(kind, record.name)} {await said_by(call, record.part_of)}"
        raise Conflict(text, id=record.id, part_of=record.part_of, hint=STATED)


async def refuse_part(call: Call, kind: str, record: Any, fields: Collection[str] | None = None) -> None:
    """Refuse an edit of a part, except by what it is a part of. ``fields`` are those that it changes; None:
    any.

    Raises:
        Conflict: the record is part of another one, which does not leave these fields to others.
    """
    part_of = getattr(record, "part_of", "")
    if part_of == call.part_of or (opens(record) and call.force):
        return
    if fields is not None and opens(record):
        await refuse_stated(call, kind, record, fields)
        return
    family, _, item = part_of.partition("/")
    left = FAMILIES[family].leaves if family in FAMILIES else frozenset()
    if not family or (fields is not None and left.issuperset(fields)):
        return
    try:
        whole = await overview.titled(call.client, call.keys, record.part_of)
    except NotFound:
        way = f"farmctl doctor --fix {kind}/{record.id} frees it"
        text = f"{title(family, item)}, which does not exist; {way}"
    else:
        way = ways(family, whole.partition("/")[2])
        text = f"{whole}; change that: {way}" if way else whole
    raise Conflict(f"{title(kind, record.name)} is part of {text}", id=record.id, part_of=record.part_of)


async def refuse_managed(call: Call, kind: str, record: Any, what: str = "count and manifest") -> None:
    """Refuse an edit of what something manages; ``what`` only the manager changes.

    Raises:
        Conflict: the record is managed.
    """
    if not (manager := getattr(record, "managed_by", "")):
        return
    named, hint = await _manager(call, manager)
    raise Conflict(
        f"{title(kind, record.name)} is managed by {named}, which alone changes its {what}",
        id=record.id,
        managed_by=manager,
        hint=hint,
    )


async def _manager(call: Call, item: str) -> tuple[str, str]:
    """A manager as people write it, and what they can do about it."""
    try:
        found = await overview.titled(call.client, call.keys, item)
    except NotFound:
        return f"{item}, which does not exist", "farmctl doctor shows how to free it"
    noun, _, name = found.partition("/")
    if found == item:
        return found, "wait until that is over"
    return found, f"farmctl {noun} describe {name} shows its progress; change or end it instead"


# Reads what is left of an owner of pods that is being deleted: pods, processes, room that a move reserved,
# and services that name it.

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
