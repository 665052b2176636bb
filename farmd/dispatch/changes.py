"""What single acts of a preview write, prepared as a farm will do it. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from farmd.commands.mutation import Call, Mutation
from farmd.dispatch.looking import noun_of
from farmd.dispatch.model import Act, Ref, owner_of
from farmd.dispatch.preview import Preview
from store.apps import Entry
from store.errors import Conflict, InputInvalid


def open_fields(entry: Entry) -> tuple[str, ...]:
    """The fields of an object's file that stay to people: those that it leaves out or ignores."""
    part, document = noun_of(entry), entry.document or {}
    wish = part.wish(document, entry.ignore)
    fields = type(wish.spec).__struct_fields__
    return tuple(sorted(set(fields) - wish.stated - {"name"}))


async def mutation(call: Call, app: str, act: Act) -> Mutation:
    """The change of one record that an act makes; the record is then part of the app.

    Raises:
        Conflict: it cannot be changed so now. InputInvalid: its document lacks what a new record needs.
    """
    entry = act.entry or Entry(ref=act.ref)
    asking = replace(call, part_of=owner_of(app), open=open_fields(entry) if entry.document else ())
    part, name = noun_of(entry), act.ref.name
    wish = part.wish(entry.document, entry.ignore) if entry.document is not None else None
    match act.verb:
        case "create":
            assert wish is not None
            return await part.create(asking, wish)
        case "remove" | "replace":
            return await part.delete(asking, name)
        case "release" | "hand":
            return await part.mark(asking, name, owner_of(act.to) if act.to else "")
        case "adopt" if wish is not None and not (await _differs(asking, entry)):
            return await part.mark(asking, name, asking.part_of, wish)
        case _:
            assert wish is not None
            return await part.update(asking, wish)


async def _differs(call: Call, entry: Entry) -> bool:
    part = noun_of(entry)
    found = await part.find(call, entry.ref.name)
    assert entry.document is not None
    return found is not None and bool(
        (await part.differs(call, found, part.wish(entry.document, entry.ignore)))[1]
    )


async def prepared(call: Call, app: str, preview: Preview, places: Mapping[Ref, str]) -> dict[Ref, Mutation]:
    """The changes of all acts on farmd's own records; what cannot be done becomes a refusal of the preview.

    Raises:
        InputInvalid: a document lacks what a new record needs; names its place.
    """
    found: dict[Ref, Mutation] = {}
    for _, act in list(preview.acts):
        ref = str(act.ref)
        if not act.ref.own or ref in found:
            continue
        try:
            found[ref] = await mutation(call, app, act)
        except Conflict as error:
            preview.refused[ref] = error.message
        except InputInvalid as error:
            raise InputInvalid(f"{places.get(ref, ref)}: {error.message}", **error.fields) from error
    return found
