"""Records that others change: parts, such as the owner of a service's pods, and what a rollout manages.

Whoever changes the whole changes its parts with it, and a manager changes what it manages. What a person
changed besides would be lost with their next change, or fail it (R14).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from farmd import overview
from farmd.kinds import KINDS, load, title, ways
from store.errors import Conflict, NotFound
from store.families import FAMILIES

if TYPE_CHECKING:
    from farmd.commands.mutation import Call


STATED = "change its file, or leave it out there; --force holds until a farm looks again"
"""What a person does whose edit of a stated field is refused."""


def opens(record: Any) -> bool:
    """Whether a record is part of something that leaves single fields of it to others."""
    family = getattr(record, "part_of", "").partition("/")[0]
    return family in FAMILIES and FAMILIES[family].opens


async def said_by(call: Call, whole: str) -> str:
    """What states fields of its parts, with who said so last and when."""
    family, _, name = whole.partition("/")
    kind = KINDS.get(family)
    if kind is None:
        return f"is said by {whole}, which this version does not know"
    told = await load(kind.author)(call, name) if kind.author else ""
    return f"is said by {kind.one} {name}{f' ({told})' if told else ''}"


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
