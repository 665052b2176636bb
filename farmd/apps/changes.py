"""What single acts write: for farms, and for a preview, which writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farmd import kinds
from farmd.apps.facts import Act, Live, Ref, Snapshot, owner_of
from farmd.apps.plan import Preview
from farmd.apps.protocols import Outside
from farmd.commands.bundled import Bundled, FoundRecord, Superseding, Wish
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Mutation
from farmd.commands.waiting import Spells
from farmd.kinds import bundled
from store.apps import Entry
from store.consul.client import ReadAhead
from store.errors import Conflict, InputInvalid, NotFound
from store.operations import MAX_OPERATIONS, Operation
from store.several import several
from store.transaction import ROUTINE_BYTES
from store.words import count_of

# One object of farmd's own as an app sees it: whose it is, what differs from its file, how far it is.


def noun_of(entry: Entry) -> Bundled:
    """How bundles hold the records of an entry's noun."""
    return bundled()[entry.ref.kind]()


def speaking(call: Call, app: str, wish: Wish | None) -> Call:
    """The caller as an app (``apps/<name>``), which leaves to people the fields that no file states."""
    fields = set(wish.spec.__struct_fields__) - wish.stated - {"name"} if wish is not None else ()
    return replace(call, part_of=app, open=tuple(sorted(fields)))


async def differing(
    part: Bundled, call: Call, found: FoundRecord, wish: Wish, *, steady: bool = False
) -> tuple[str, ...]:
    """The stated fields of a record that are otherwise; ``call`` is its app, speaking of its file.

    ``steady``: its revision was reached, so that people may disable it.
    """
    before, after = await part.differs(call, found, wish)
    names = {*before, *after} - ({"disabled"} if steady else set())
    said = getattr(found.stored.record, "open", None)
    own = found.part_of == call.part_of and not part.replaces
    moved = own and said is not None and tuple(said) != call.open
    return (*sorted(names), *(("open",) if moved else ()))


async def look(call: Call, entry: Entry, spells: Spells, *, judged: bool = True) -> Live | None:
    """The record of an entry; None: there is none. Without ``judged`` its verdict is unknown.

    ``call.part_of`` is the app that looks.

    Raises:
        RecordInvalid: the record does not decode.
    """
    part = noun_of(entry)
    found = await part.find(call, entry.ref.name)
    if found is None:
        return None
    differs: tuple[str, ...] = ()
    wish = part.wish(entry.document, entry.ignore) if entry.document is not None else None
    if wish is not None:
        found = part.held(call, found, wish)
        differs = await differing(part, speaking(call, call.part_of, wish), found, wish)
    verdict = await part.verdict(call, found, spells, wish) if judged else Readiness("unknown")
    return live(part, entry, found, differs, verdict)


def live(
    part: Bundled,
    entry: Entry,
    found: FoundRecord,
    differs: tuple[str, ...],
    verdict: Readiness,
    settles: float | None = None,
) -> Live:
    """A record as its app plans with it, after it was compared and judged."""
    return Live(
        ref=entry.ref,
        owner=found.part_of,
        differs=differs,
        fixed=part.replaces,
        verdict=verdict.state,
        why=verdict.why,
        busy=found.busy,
        settles=settles,
        version=found.stored.index,
    )


# Operations of a farm beside the changes in one transaction: the fence, the record, the state, the audit.
BESIDE = 8
# Dry runs that are asked for at a time.
TRIED_AT_ONCE = 32
ONE_TRANSACTION = f"{MAX_OPERATIONS} of {ROUTINE_BYTES} bytes, which fit into one transaction"


def over_one_transaction(written: Sequence[Operation]) -> str:
    """How much these changes are, if one transaction of a farm has no room for them; else nothing."""
    count, size = len(written) + BESIDE, sum(each.size() for each in written)
    fits = count <= MAX_OPERATIONS and size <= ROUTINE_BYTES
    return "" if fits else f"{count_of(count, 'operation')} of {size} bytes"


async def mutation(part: Bundled, call: Call, act: Act, wish: Wish | None) -> Mutation:
    """The change of one record that an act makes; the record is then part of the app that speaks.

    ``wish`` is what the act's document states of an object that is there.

    Raises:
        Conflict: it cannot be changed so now. InputInvalid: its document lacks what a new record needs.
    """
    name, entry = act.ref.name, act.entry
    match act.verb:
        case "remove" | "replace":
            return await part.delete(call, name)
        case "release":
            return await part.mark(replace(call, open=()), name, "")
        case "hand":
            return await part.mark(call, name, owner_of(act.to))
    assert entry is not None
    assert entry.document is not None
    assert wish is not None
    if act.verb == "create":
        whole = part.wish(entry.document) if entry.ignore else wish
        return await part.create(call, whole)  # also what counts for the creation alone
    if act.verb == "adopt" and (part.replaces or not act.differs):
        return await part.mark(call, name, call.part_of, wish)
    return await part.update(call, wish)


async def prepared(call: Call, app: str, preview: Preview, places: Mapping[Ref, str]) -> dict[Ref, Mutation]:
    """The changes of all acts on farmd's own records; what cannot be done becomes a refusal of the preview.

    Raises:
        InputInvalid: a document lacks what a new record needs; names its place.
    """
    own: dict[Ref, Act] = {}
    for _, act in preview.acts:
        if act.ref.own:
            own.setdefault(str(act.ref), act)

    async def one(act: Act) -> Mutation | Conflict | InputInvalid | NotFound | None:
        try:
            return await _foreseen(call, app, act)
        except NotFound as error:
            lacks = f"{kinds.noun(str(error.fields.get('kind', '')))}/{error.fields.get('id', '')}"
            # What this very plan creates is not there yet; the farm prepares the change again once it is.
            return None if lacks in own and own[lacks].verb == "create" else error
        except (Conflict, InputInvalid) as error:
            return error

    # The plan looked for what it creates, and each creation compares the same record of the cluster.
    creations = [act.ref for act in own.values() if act.verb == "create"]
    absent = {call.keys.name(kinds.family_of(each.kind), each.name): None for each in creations}
    async with ReadAhead(call.client, [call.keys.cluster] if creations else [], absent) as client:
        call = replace(call, client=client)
        prepared = await several(one, own.values())

    found: dict[Ref, Mutation] = {}
    for ref, made in zip(own, prepared, strict=True):
        if isinstance(made, InputInvalid):
            raise InputInvalid(f"{places.get(ref, ref)}: {made.message}", **made.fields) from made
        if isinstance(made, Conflict | NotFound):
            preview.refused[ref] = made.message
        elif made is not None:
            found[ref] = made
    return found


async def superseding(
    call: Call, shot: Snapshot, preview: Preview, *, asked: bool, strict: bool
) -> dict[Ref, Mutation]:
    """The changes that replace versions which rollouts or deployments are bringing by those of the app's
    files.

    Where they are not ``asked`` for, the preview says how to ask. ``strict``: a version that cannot take that
    place is a refusal of the preview; else its object waits for the end of the change.
    """
    found: dict[Ref, Mutation] = {}
    for entry in shot.wanted:
        ref = str(entry.ref)
        seen, part = shot.live.get(ref), noun_of(entry) if entry.ref.own else None
        if ref not in preview.waits or seen is None or entry.document is None:
            continue
        if seen.owner != owner_of(shot.name) or not isinstance(part, Superseding):
            continue
        wish = part.wish(entry.document, entry.ignore)
        try:
            made = await part.superseding(speaking(call, owner_of(shot.name), wish), wish)
        except (Conflict, InputInvalid) as error:
            if strict:
                preview.refused[ref] = error.message
            continue
        if made is not None and asked:
            found[ref] = made
            del preview.waits[ref]
        elif made is not None:
            preview.waits[ref] += "; --supersede puts this version in place of the one that is coming"
    return found


async def _foreseen(call: Call, app: str, act: Act) -> Mutation:
    entry = act.entry or Entry(ref=act.ref)
    part = noun_of(entry)
    wish = part.wish(entry.document, entry.ignore) if entry.document is not None else None
    return await mutation(part, speaking(call, owner_of(app), wish), act, wish)


async def rehearsed(outside: Outside, preview: Preview) -> None:
    """Ask the API server of all that is to be made or adopted there; what it refuses is a refusal of the
    preview.
    """
    acts = [act for _, act in preview.acts if not act.ref.own and act.verb in ("create", "adopt")]
    for act, found in zip(acts, await several(outside.rehearse, acts, TRIED_AT_ONCE), strict=True):
        if found.refused:
            preview.refused[str(act.ref)] = found.refused
        elif found.note:
            preview.notes[str(act.ref)] = found.note
