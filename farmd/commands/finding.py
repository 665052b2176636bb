"""Finds records to read by what a person typed. A change takes an exact name or a whole id only."""

from __future__ import annotations

from typing import TypeVar

from farmd.commands.mutation import Call
from farmd.kinds import title
from store.entry import Stored
from store.named import Named, NamedRecords

T = TypeVar("T", bound=Named)


async def look(call: Call, records: NamedRecords[T], target: str) -> Stored[T]:
    """A record to read, by name, id or the beginning of its id; the caller is told whose id it is.

    Raises:
        NotFound: there is none. Ambiguous: several ids begin so. RecordInvalid: it does not decode.
    """
    stored = await records.look(target)
    record = stored.record
    if target != record.name:
        what = "the id" if target == record.id else "a prefix of the id"
        call.note(f"{target} is {what} of {title(records.family, record.name)}")
    return stored
