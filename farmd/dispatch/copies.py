"""The keys that a command reads to make or change a record, and what the farm's copy tells of them.

A change compares all that the copy told, so nothing is read before it. After a refusal all is read, because
others may have the name, or have left it behind, hold the lock, or have changed the record.
"""

from __future__ import annotations

from farmd import kinds
from farmd.commands import difference
from farmd.dispatch.index import Index
from farmd.dispatch.model import Act
from store import codec
from store.entry import Entry
from store.families import FAMILIES, named
from store.keys import Keys


def read_for(index: Index, keys: Keys, act: Act) -> list[str]:
    """The keys that a command reads one after the other; none of a noun of which there is no copy."""
    noun, name = act.ref.kind, act.ref.name
    if not index.cached(noun):
        return []
    family, stored = kinds.family_of(noun), index.find(noun, name)
    called = [keys.name(family, name)] if named(family) else []
    if stored is None:
        return called if act.verb == "create" else []
    found = [*called, stored.key, keys.mutation_lock(family, keys.last_part(stored.key))]
    sha = difference.manifest_of(stored.record)
    return [*found, keys.manifest(sha)] if sha and "pod" in act.differs else found


def known(index: Index, keys: Keys, act: Act) -> dict[str, Entry | None]:
    """What stands at these keys by a copy that has all of a record's fields: its name and the record, no
    lock; of a record that is not there, no name.
    """
    noun, family = act.ref.kind, FAMILIES[kinds.family_of(act.ref.kind)]
    if not (family.keep_unknown and index.cached(noun)):
        return {}
    stored, name = index.find(noun, act.ref.name), keys.name(family.name, act.ref.name)
    if stored is None:
        return {name: None} if act.verb == "create" else {}
    item, raw = keys.last_part(stored.key), stored.raw or codec.encode(stored.record)
    return {
        name: Entry(name, codec.encode(item), 0),
        stored.key: Entry(stored.key, raw, stored.index, stored.create_index, flags=stored.flags),
        keys.mutation_lock(family.name, item): None,
    }
