"""One object of farmd's own as an app sees it: whose it is, what differs from its file, how far it is."""

from __future__ import annotations

from dataclasses import replace

from farmd.commands.bundled import Bundled, FoundRecord, Readiness, Wish
from farmd.commands.mutation import Call
from farmd.commands.waiting import Spells
from farmd.dispatch.model import Live
from farmd.kinds import bundled, load
from store.apps import Entry


def noun_of(entry: Entry) -> Bundled:
    """How bundles hold the records of an entry's noun."""
    found: Bundled = load(bundled()[entry.ref.kind])
    return found


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
