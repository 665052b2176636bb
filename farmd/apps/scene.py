"""The present state of an app, read once from the store, for previews and for people. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from farmd import overview
from farmd.apps.changes import look
from farmd.apps.facts import Live, Ref, Snapshot, both, heirs, owner_of, takes
from farmd.apps.plan import revisions
from farmd.apps.protocols import Outside
from farmd.apps.sweep import leftovers
from farmd.commands.mutation import Call
from farmd.commands.waiting import Spells
from farmd.overview.owners import holders, why_unowned
from store import codec
from store.apps import KIND, TRACKERS, App, AppStatus, AppStore, DispatchState, Entry, ResourceTracker
from store.apps import entries as entries_of
from store.entry import Stored
from store.errors import AccessDenied, NotFound, RecordInvalid
from store.farms import of_clusters
from store.keys import valid_name
from store.named import records
from store.several import several
from store.status import StatusStore
from store.work import Work

AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """An app's record, how far it is, and its last status. ``stored`` is None where there is no such app.

    ``unowned`` says why no farm works on it, and ``lost`` that somebody removed its wanted revision, where
    that was read.
    """

    name: str
    stored: Stored[App] | None = None
    state: DispatchState = field(default_factory=DispatchState)
    status: AppStatus | None = None
    unowned: str = ""
    lost: str = ""

    @property
    def outside(self) -> bool:
        """Whether it has objects in Kubernetes, because its farm must reach a cluster."""
        return self.stored is not None and bool(of_clusters(self.stored.record.needs))

    @property
    def reported(self) -> bool:
        """Whether the status describes the record as it is now."""
        return self.status is not None and self.stored is not None and self.status.record == self.stored.index


async def standing(call: Call, name: str) -> AppState:
    """One app as it stands.

    Raises:
        RecordInvalid: its record does not decode.
    """
    stored = await AppStore(call.client, call.keys).find(name)
    statuses = StatusStore(call.client, call.keys, KIND, AppStatus)
    state = await state_of(call, name)
    return AppState(name=name, stored=stored, state=state, status=await statuses.get(name))


async def standings(call: Call) -> tuple[list[AppState], list[str]]:
    """All apps as they stand, by name, and one line for each record that does not decode."""
    client, keys = call.client, call.keys
    apps, broken = await AppStore(client, keys).list()
    statuses = await StatusStore(client, keys, KIND, AppStatus).list()
    states, owners = await _states(call), await holders(client, keys, KIND)
    members = await overview.farms(client, keys)
    lost = await _lost(call, {name: stored.record for name, stored in apps.items()})
    found = [
        AppState(
            name=name,
            stored=stored,
            state=states.get(name, DispatchState()),
            status=statuses.get(name),
            unowned="" if name in owners else why_unowned(KIND, stored.record, members),
            lost=lost.get(name, ""),
        )
        for name, stored in apps.items()
    ]
    return found, [error.message for error in broken]


async def owned(call: Call, now: AppState) -> AppState:
    """An app that there is, with why no farm works on it, if none does, and what it lacks."""
    assert now.stored is not None
    record = now.stored.record
    now = replace(now, lost=(await _lost(call, {now.name: record})).get(now.name, ""))
    if await call.client.read(call.keys.lock(KIND, now.name)) is not None:
        return now
    members = await overview.farms(call.client, call.keys)
    return replace(now, unowned=why_unowned(KIND, record, members))


async def _lost(call: Call, apps: Mapping[str, App]) -> Mapping[str, str]:
    """The apps whose wanted revision somebody removed, each with the way out; farms that know it go on until
    they read it again. Without read access to revisions the result is empty.
    """
    keys, found = call.keys, dict[str, str]()
    wanted = {name: app.revision for name, app in apps.items() if not app.deleting}
    tree = keys.trackers(*apps) if len(apps) == 1 else keys.tree(TRACKERS)
    try:
        there = set((await call.client.keys(tree)).items)
        for name, revision in wanted.items():
            key = keys.tracker(name, revision)
            if key not in there and await call.client.read(key) is None:
                way = f"farmctl apply or farmctl app rollback {name} --to N creates another one"
                found[name] = f"somebody removed revision {revision}: {way}"
    except AccessDenied:
        return {}
    return found


async def _states(call: Call) -> dict[str, DispatchState]:
    """How far each app is, save those of which that does not decode: the doctor reports them."""
    found = (await records(call.client, call.keys.work(KIND, ""), Work)).named
    return {name: work.record.dispatch or DispatchState() for name, work in found.items()}


async def state_of(call: Call, name: str) -> DispatchState:
    """How far an app is.

    Raises:
        RecordInvalid: what is known of it does not decode.
    """
    entry = await call.client.read(call.keys.work(KIND, name))
    work = Work() if entry is None else codec.decode(Work, entry.value, entry.key)
    return work.dispatch or DispatchState()


@dataclass(frozen=True, slots=True)
class Kept:
    """The revisions of an app, as far as they can be read: the ``tracker`` of the wanted one, the ``entries``
    of all that may have made something, and by number one line for each that does not decode.
    """

    tracker: ResourceTracker | None
    entries: Mapping[Ref, Entry]
    broken: Mapping[int, str]


async def kept(call: Call, now: AppState) -> Kept:
    """The revisions of an app that there is, each entry as the newest one has it; for people alone, because
    what a broken one names is missing.
    """
    assert now.stored is not None
    store, record = AppStore(call.client, call.keys), now.stored.record
    found, entries, broken = None, dict[Ref, Entry](), dict[int, str]()
    for revision in sorted(revisions(record, now.state) | {record.revision}):
        key = call.keys.tracker(now.name, revision)
        try:
            tracker = await store.tracker(now.name, revision)
            entries |= {str(entry.ref): entry for entry in entries_of(tracker, key)}
        except NotFound:
            continue  # its worker trimmed it since, or a person removed it
        except RecordInvalid as error:
            short = key.removeprefix(call.keys.prefix)
            broken[revision] = f"{error.message}; farmctl doctor --fix {short} removes it"
            continue
        found = tracker if revision == record.revision else None
    return Kept(found, entries, broken)


async def former(call: Call, now: AppState) -> dict[Ref, Entry]:
    """The entries of all revisions that may have left something, each as the newest one has it."""
    if now.stored is None:
        return {}
    store, found = AppStore(call.client, call.keys), dict[Ref, Entry]()
    for revision in sorted(revisions(now.stored.record, now.state)):
        try:
            found |= {str(entry.ref): entry for entry in await store.entries(now.name, revision)}
        except NotFound:
            continue  # its worker trimmed it since
    return found


async def naming(call: Call, ref: Ref) -> tuple[list[tuple[str, int, Entry]], list[str]]:
    """The apps whose wanted revisions name an object, each with the revision and the entry, and one line for
    each revision that cannot be read.
    """
    store = AppStore(call.client, call.keys)
    apps, broken = await store.list()

    async def one(name: str) -> tuple[str, int, Entry] | str | None:
        revision = apps[name].record.revision
        try:
            entries = await store.entries(name, revision)
        except (NotFound, RecordInvalid) as error:
            return error.message
        return next(((name, revision, each) for each in entries if str(each.ref) == ref), None)

    told = await several(one, apps, AT_ONCE)
    unread = [*(error.message for error in broken), *(each for each in told if isinstance(each, str))]
    return [each for each in told if isinstance(each, tuple)], unread


async def has_outside(call: Call, name: str) -> bool:
    """Whether an app may have objects in Kubernetes, by the revisions that may have left something; one
    without a name has none.

    Raises:
        InputInvalid: a bad name.
    """
    if not name:
        return False
    now = await standing(call, valid_name(name, "--app"))
    return any(not entry.ref.own for entry in (await former(call, now)).values())


async def snapshot(
    call: Call,
    now: AppState,
    app: App,
    entries: Sequence[Entry],
    known: Mapping[Ref, Entry],
    outside: Outside | None = None,
) -> Snapshot:
    """The app as if these entries were wanted; ``known`` are those of former revisions.

    ``outside`` has the objects of Kubernetes; without it they count as not there.
    """
    wanted = {str(entry.ref): entry for entry in entries if not entry.left}
    left = {str(entry.ref): entry for entry in entries if entry.left}
    asking = replace(call, part_of=owner_of(now.name))
    states = {other: state for other, state in (await _states(call)).items() if other != now.name}
    shot = Snapshot(
        name=now.name,
        app=app,
        state=now.state,
        wanted=tuple(wanted.values()),
        left=left,
        former=known,
        live=await lives(asking, {**known, **left, **wanted}, outside),
        others=heirs(states, now.name),
        behind={other: state.behind for other, state in states.items()},
        now=call.clock.now(),
    )
    return replace(shot, others=both(shot.others, await _takers(call, shot, states)))


async def _takers(
    call: Call, shot: Snapshot, states: Mapping[str, DispatchState]
) -> Mapping[Ref, Sequence[str]]:
    """The objects that leave the app and that the wanted revisions of other apps take over, as a farm sees
    them.
    """
    if not (left := leftovers(shot)):
        return {}
    store, found = AppStore(call.client, call.keys), dict[Ref, list[str]]()
    for other, stored in (await store.list())[0].items():
        state = states.get(other, DispatchState())
        taken = {ref for ref in left if other != shot.name and takes(stored.record, state, ref)}
        if not taken:
            continue
        try:
            named = await store.entries(other, stored.record.revision)
        except (NotFound, RecordInvalid):
            continue
        for ref in sorted(taken & {str(entry.ref) for entry in named if not entry.left}):
            found.setdefault(ref, []).append(other)
    return found


async def lives(
    call: Call, entries: Mapping[Ref, Entry], outside: Outside | None = None, *, judged: bool = False
) -> dict[Ref, Live]:
    """The objects of these entries that exist; several are read at once."""
    spells = Spells(call.clock)

    async def one(entry: Entry) -> Live | None:
        if entry.ref.own:
            return await look(call, entry, spells, judged=judged)
        return None if outside is None else await outside.look(entry)

    found = await several(one, entries.values(), AT_ONCE)
    return {ref: live for ref, live in zip(entries, found, strict=True) if live is not None}
