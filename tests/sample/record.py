"""Notes: texts that people name, and the copy that farms keep of each under its id."""

from __future__ import annotations

import msgspec

from store.families import Family


class Note(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a person asks for; an empty text has no copy."""

    id: str
    name: str
    text: str = ""
    labels: dict[str, str] = {}
    needs: list[str] = []
    disabled: bool = False
    deleting: bool = False


class Copy(msgspec.Struct, frozen=True):
    """What farms keep equal to a note."""

    text: str


NOTES: Family[Note] = Family(name="notes", record=Note, watched="whole", claimed=True, named=True)
NOTED: Family[Copy] = Family(name="noted", record=Copy, watched="whole")
