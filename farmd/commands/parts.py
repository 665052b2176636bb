"""Parts: records that belong to another one, such as the owner of a service's pods.

Whoever changes the whole changes its parts with it. What a person changed in a part would be lost with the
next change of the whole, or fail it (R14).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from farmd import overview
from farmd.kinds import title, ways
from store.errors import Conflict, NotFound
from store.families import FAMILIES

if TYPE_CHECKING:
    from farmd.commands.mutation import Call


async def refuse_part(call: Call, kind: str, record: Any, fields: Collection[str] | None = None) -> None:
    """Refuse an edit of a part. ``fields`` are those that it changes; None: any.

    Raises:
        Conflict: the record is part of another one, which does not leave these fields to others.
    """
    family, _, item = getattr(record, "part_of", "").partition("/")
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
