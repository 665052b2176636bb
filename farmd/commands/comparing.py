"""What a file would change of a record, and edits that are held to the version that a person saw."""

from __future__ import annotations

from dataclasses import replace

from farmd.commands import bodies, difference
from farmd.commands.edits import S
from farmd.commands.mutation import Call, Change, Mutation
from farmd.commands.noun import Noun
from farmd.commands.placing import T
from store import operations
from store.entry import Stored
from store.errors import InputInvalid


async def compare(call: Call, noun: Noun[S, T], spec: S) -> Change:
    """What ``create`` or ``update`` would change, whether or not it is allowed now; empty: nothing.

    Raises:
        InputInvalid: the record does not exist, and the spec lacks what a new one cannot do without.
    """
    word, records = noun.words.noun, noun.records(call.client, call.keys)
    stored, _ = await records.named(spec.name)
    wanted = await noun.built(call, spec, "", stored.record if stored is not None else None)
    if stored is None:
        return Change(noun.kind, "", spec.name, f"{word}.create", after={**noun.told(wanted), "exists": True})
    record = stored.record
    before, after = difference.fields(record, wanted, noun.file.names)
    lines = await bodies.pod_lines(call, record, spec) if "pod" in after else ()
    return Change(noun.kind, record.id, record.name, f"{word}.update", before, after, lines)


async def edited(call: Call, noun: Noun[S, T], stored: Stored[T], spec: S) -> Mutation:
    """The change of the version of a record that a person saw to what the person made of it.

    Raises:
        InputInvalid: another name, or what ``update`` refuses.
        Conflict: it is managed, being deleted or locked. A later version is refused as it is committed.
    """
    if spec.name != stored.record.name:
        raise InputInvalid(
            f"name: found {spec.name!r}, expected {stored.record.name!r}: a name never changes", field="name"
        )
    mutation = await noun.update(call, spec, now=not noun.words.gradual)
    seen = operations.check_index(stored.key, stored.index)
    return replace(mutation, operations=(seen, *mutation.operations)) if mutation.needed else mutation
