"""Finds records to read by what a person typed. A change takes an exact name or a whole id only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

from farmd.commands.mutation import Call
from farmd.kinds import KINDS, OTHERS, title
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import NotFound, StoreError
from store.families import intent_places, named
from store.keys import Keys, is_sentinel
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


async def names_of(client: ConsulClient, keys: Keys, families: Iterable[str]) -> set[str]:
    """The names of the records of some families; of pods alone ``node/instance``."""
    if [*families] == ["pods"]:
        page = await client.keys(keys.tree("intent"))
        return {"/".join(place) for place in intent_places(keys, page.items)}
    trees = [tree for family in families for tree in _trees(family)]
    found = [key for tree in trees for key in (await client.keys(keys.tree(tree))).items]
    return {keys.last_part(key) for key in found if not is_sentinel(key)}


def _trees(family: str) -> tuple[str, ...]:
    """The trees whose keys end in the names of a family's records."""
    kind = KINDS.get(family)
    return (kind.names if kind is not None else ()) or (f"names/{family}" if named(family) else family,)


async def suggest(call: Call, error: NotFound) -> None:
    """Begin the hint of an error about a name that does not exist with the most similar names of its kind."""
    family, name = error.fields.get("kind"), error.fields.get("id")
    if not (isinstance(name, str) and family in {*KINDS, *OTHERS}):
        return
    with suppress(StoreError):  # the first error says enough
        known = await names_of(call.client, call.keys, [family])
        if near := difflib.get_close_matches(name, known, n=2, cutoff=0.8):
            likely = f"did you mean {' or '.join(title(family, each) for each in near)}?"
            error.fields["hint"] = f"{likely} {error.fields.get('hint', '')}".strip()
