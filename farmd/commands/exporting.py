"""Exports what people declared as files, and turns such files into changes of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farmd import kinds
from farmd.commands.bundled import Bundled, Exported, Wish, Written
from farmd.commands.difference import lines
from farmd.commands.heads import headed
from farmd.commands.mutation import Call, Mutation, registered
from store import config
from store.entry import Entry
from store.errors import Conflict, InputInvalid, NotFound, RecordInvalid
from store.registration import prove

# What people said of a fleet, as files that ``farmctl import`` and ``farmctl apply`` take.
#
# Only what people write is said: neither what farms and agents make of it, nor what is a part of something
# else, which comes again with that. What must never break: equal records give equal files, byte for byte,
# so that files in version control differ where somebody changed something.


async def written(call: Call) -> Written:
    """All records that people wrote, with the documents of each file in the order of their names."""
    nouns = kinds.exported()
    await registered(call)
    # Else the fleet of a wrong token or prefix would look empty.
    await prove(call.client, call.keys, {kinds.family_of(noun) for noun in nouns})
    parts: list[Exported] = [part() for part in nouns.values()]
    all_of = Written({}, [], [])
    for noun, found in zip(nouns, await asyncio.gather(*(part.written(call) for part in parts)), strict=True):
        for path, documents in found.files.items():
            if documents:
                all_of.files[path] = _headed(noun, documents) if path == noun else documents
        all_of.commands.extend(found.commands)
        all_of.left.extend(found.left)
    await _config(call, all_of)
    return all_of


async def _config(call: Call, to: Written) -> None:
    """Add a command for each config key. Manifests have their values, so the files do not wait for them."""
    tree = call.keys.tree(config.FAMILY)
    for raw in (await call.client.list(tree, mode="consistent")).items:
        path = raw.key.removeprefix(tree)
        try:
            value = config.text_of(Entry.of(raw))
            words = ["config", "set", "--", config.valid_path(path), config.valid_value(value)]
        except (InputInvalid, RecordInvalid) as error:
            to.left.append(f"{config.PREFIX}{path}: {error.message}")
            continue
        to.commands.append(["farmctl", *words])


def _headed(noun: str, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Documents with a head that names their kind."""
    ordered = sorted(documents, key=lambda document: str(document["name"]))
    return [headed(noun, document) for document in ordered]


# Brings records to what files say that ``farmctl export`` wrote, or that people wrote like them.
#
# Each object is compared as a whole, but for nodes, to which labels, taints and capacity are added. What
# must never break: what somebody said otherwise is changed only where a person wants that, and what belongs
# to something else is left to that.


@dataclass(slots=True)
class Import:
    """What an import does: the changes in the order in which they are written, the objects that are as the
    files say, and those that are refused, with the reason. ``later`` are documents that refer to an object
    of the same import: they are prepared once it exists.
    """

    mutations: list[Mutation] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    later: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)


async def prepared(
    call: Call, documents: Mapping[str, tuple[str, Mapping[str, Any]]], *, overwrite: bool
) -> Import:
    """What to do for documents, each a noun and the fields of its file, by reference such as ``rc/web``.

    Nothing is written. ``overwrite``: records that differ are changed.
    """
    found, nouns = Import(), kinds.bundled()
    parts: dict[str, Bundled] = {noun: nouns[noun]() for noun, _ in documents.values()}
    for ref, (noun, document) in sorted(
        documents.items(), key=lambda each: (parts[each[1][0]].order, each[0])
    ):
        part = parts[noun]
        wish = part.wish(document)
        whole = wish._replace(stated=frozenset(wish.spec.__struct_fields__) - {"name"})
        try:
            await _object(call, part, ref, whole, found, overwrite=overwrite)
        except NotFound as error:
            lacks = kinds.title(str(error.fields.get("kind")), str(error.fields.get("id")))
            if lacks in documents:
                found.later[ref] = noun, document
            else:
                found.refused[ref] = error.message
        except (Conflict, InputInvalid, RecordInvalid) as error:
            found.refused[ref] = error.message
    return found


async def _object(call: Call, part: Bundled, ref: str, wish: Wish, to: Import, *, overwrite: bool) -> None:
    """Add what is to be done for one object.

    Raises:
        Conflict: it cannot be changed so now. RecordInvalid: the record that is there does not decode.
    """
    there = await part.find(call, wish.name)
    if there is None:
        to.mutations.append(await part.create(call, wish))
        return
    before, after = await part.differs(call, there, wish)
    if not after:
        to.same.append(ref)
        return
    differs = ", ".join(lines(before, after))
    if there.part_of:
        raise Conflict(f"differs ({differs}) and is a part of {there.part_of}")
    if there.busy:
        raise Conflict(f"differs ({differs}) and {there.busy}")
    if not (overwrite or before.keys().isdisjoint(after)):
        raise Conflict(f"differs: {differs}")
    if part.replaces:
        raise Conflict(f"differs: {differs}; a {part.noun} does not change: delete it first")
    to.mutations.append(await part.update(call, wish))
