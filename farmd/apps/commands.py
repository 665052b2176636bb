"""The commands of people on an app: apply, pause, resume, release, delete; and the wait for its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from farmd import overview
from farmd.apps import changes
from farmd.apps.bundle import AppSpec, Bundle
from farmd.apps.facts import Ref, Snapshot, app_of, owner_of
from farmd.apps.plan import Preview, carried, decide, falls_back, play
from farmd.apps.protocols import Outside
from farmd.apps.revision import existing, latest, needs, recorded, refuse_deleting, said, wanted
from farmd.apps.scene import AppState, former, kept, snapshot, standing
from farmd.commands import waiting
from farmd.commands.mutation import Call, Mutation, commit
from farmd.commands.resolving import alike
from farmd.commands.waiting import Look, Report
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.apps import ALL, KIND, MAX_ADOPTED, App, AppStore, Entry, ObjectStatus
from store.errors import AccessDenied, Conflict, InputInvalid, NotFound, RecordInvalid, refuse
from store.keys import valid_name
from store.mistakes import nearest
from store.words import listed

# The words of people to an app that stands: pause, resume, release, delete.


async def pause(call: Call, name: str) -> Mutation:
    """Keep farms from changing an app's objects until it is resumed.

    Raises:
        NotFound: there is none. Locked: somebody holds its mutation lock.
    """
    return await said(call, await existing(call, name), "pause", paused=True)


async def resume(call: Call, name: str, outside: Outside | None = None) -> Mutation:
    """Let farms continue with an app that is paused, or whose objects bear marks that Consul does not know.

    Raises:
        NotFound: there is none. InputInvalid: marks are to be passed, and no reason is given.
        Conflict: nobody knows its marks.
    """
    now = await existing(call, name)
    later = now.status.mark if now.status is not None else 0
    if not (later or wanted(now).paused):
        later = await _mark(call, now, outside)
    if later and not call.reason:
        text = "reason: missing, expected why objects with later marks belong to this app (--reason)"
        raise InputInvalid(text, field="reason")
    return await said(call, now, "resume", paused=False, resumed=max(wanted(now).resumed, later))


async def _mark(call: Call, now: AppState, outside: Outside | None) -> int:
    """The highest mark of an app's objects, where it is above all that are recorded; 0: none is.

    Raises:
        Conflict: its farm has not told, and nobody can look.
    """
    if outside is None:
        if now.outside and not now.reported:
            text = f"app {now.name!r}: no farm has reported its marks, and no kubeconfig to read them with"
            raise Conflict(text, id=now.name, hint="set KUBECONFIG, or start a farm that serves its cluster")
        return 0
    entries = {ref: entry for ref, entry in (await kept(call, now)).entries.items() if not entry.ref.own}
    return decide(await snapshot(call, now, wanted(now), [], entries, outside)).mark


async def release(call: Call, name: str, refs: Collection[str]) -> Mutation:
    """Keep objects that are no longer in the files, without an owner.

    Raises:
        NotFound: no such app. InputInvalid: an object that is in the files, or is not the app's.
    """
    now = await existing(call, name)
    was = wanted(now)
    entries = await AppStore(call.client, call.keys).entries(name, was.revision)
    left = {str(entry.ref) for entry in entries if entry.left}
    inside = {str(entry.ref) for entry in entries} - left
    for ref in refs:
        if ref not in left:
            found = f"{ref}, which is in the files" if ref in inside else repr(ref)
            refuse(
                "release",
                found,
                f"an object that is no longer in the files: {listed(sorted(left)) or 'there is none'}",
            )
    freed = [replace(each, release=each.release or str(each.ref) in refs) for each in entries]
    app = replace(was, revision=was.revision + 1, mass=False, adopt=[], force=False)
    return await recorded(call, now, app, freed, action="release")


async def delete(
    call: Call, name: str, *, keep: bool, outside: Outside | None = None
) -> tuple[Mutation, Preview]:
    """Mark an app for its farm to take down, and what that does: its objects go, or with ``keep`` only the
    marks on them.

    Raises:
        NotFound: there is none. Locked: somebody holds its mutation lock.
    """
    now = await existing(call, name)
    word = "keep" if keep else "objects"
    app = replace(wanted(now), deleting=word, paused=False)
    preview = play(await snapshot(call, now, app, [], await former(call, now), outside))
    made = await said(call, now, "mark-deleted", destructive=True, deleting=word, paused=False)
    return made, preview


# New revisions of an app: from a bundle, or from an earlier revision; both with what they will do.
#
# What must never break: what is refused is refused before anything is written.


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A revision that is ready to be written. ``changes`` are those of single records, by reference, and
    ``superseding`` those that put a version of the files in place of one that is coming.
    """

    now: AppState
    app: App
    entries: tuple[Entry, ...]
    preview: Preview
    changes: Mapping[Ref, Mutation]
    mutation: Mutation
    superseding: Mapping[Ref, Mutation] = field(default_factory=dict)

    @property
    def due(self) -> bool:
        """Whether this command or a farm has anything to write."""
        return self.needed or not self.preview.empty

    @property
    def needed(self) -> bool:
        """Whether this command has anything to write."""
        return self.mutation.needed or bool(self.superseding)

    @property
    def revision(self) -> int:
        """The number of the revision that is wanted once all is written."""
        stored = self.now.stored
        return self.app.revision if self.mutation.needed or stored is None else stored.record.revision

    async def commit(self, call: Call) -> None:
        """Record the revision, then supersede the versions that are coming: by a person, because farms leave
        an object to its rollout.

        Raises:
            Conflict: something changed since it was read; the revision may be recorded.
        """
        if self.mutation.needed:
            await commit(call, self.mutation)
        for each in self.superseding.values():
            await commit(dataclasses.replace(call, part_of=owner_of(self.now.name)), each)

    def refuse(self) -> None:
        """Refuse to write a revision that would come to nothing.

        Raises:
            Conflict: objects that the app may not take, or that cannot be changed so: all of them.
        """
        if self.preview.refused:
            told = "; ".join(f"{ref}: {why}" for ref, why in sorted(self.preview.refused.items()))
            raise Conflict(f"app {self.now.name!r}: {told}", id=self.now.name)


async def apply(
    call: Call,
    bundle: Bundle,
    *,
    adopt: Sequence[str] = (),
    mass: bool = False,
    force: bool = False,
    cluster: str = "",
    supersede: bool = False,
    asks: bool = False,
    outside: Outside | None = None,
) -> Application:
    """The next revision of an app from a bundle; nothing is written.

    ``adopt`` are objects that it may take although they differ or belong to others; ``force`` takes also
    fields of theirs that others manage. ``mass`` lets more than half of the objects go. ``cluster`` is the
    farms' name of the Kubernetes cluster that it needs, if any. ``supersede``: also in place of versions that
    are coming by rollouts; ``asks``: the same where that works, because a person sees the plan and is asked.

    Raises:
        InputInvalid: nothing in the bundle, too much would go, or a setting that cannot be.
        Conflict: the app is being deleted; or it does not fit into one transaction, where it must.
    """
    if not bundle.app.name:
        raise InputInvalid("app: missing, expected --app NAME, or a document with kind: app", field="app")
    now = await standing(call, valid_name(bundle.app.name, "--app"))
    refuse_deleting(now)
    app = replace(_settings(bundle.app, now), adopt=_adopted(adopt, bundle), mass=mass, force=force)
    known = await former(call, now)
    app = replace(app, needs=await needs(call, now, app, cluster, bundle.entries, known))
    if not (bundle.entries or (mass and known)):
        gone = f"; --mass-removal --prune removes {listed(sorted(known))}" if known else ""
        raise InputInvalid(f"app {now.name!r}: found no object in the files{gone}", field="file")
    entries = carried([_as_before(each, known) for each in bundle.entries], known, prune=app.prune)
    made = await _prepared(call, now, app, entries, known, bundle.places, outside)
    return await _superseding(call, made, known, supersede=supersede, asks=asks)


async def rollback(
    call: Call,
    name: str,
    revision: int | None = None,
    outside: Outside | None = None,
    *,
    cluster: str = "",
    supersede: bool = False,
    asks: bool = False,
) -> Application:
    """A new revision with the documents of an earlier one; None: the last one that was reached before.
    ``cluster``, ``supersede`` and ``asks`` as for ``apply``.

    Raises:
        NotFound: no such app or revision, or none to go back to. Conflict: it is being deleted; or no farm
            serves the cluster of its objects. InputInvalid: farms serve several, and none is named.
    """
    now, store = await existing(call, name), AppStore(call.client, call.keys)
    was = wanted(now)
    number = revision or await _before(store, now)
    documents = [entry for entry in await store.entries(name, number) if not entry.left]
    known = await former(call, now)
    app = replace(was, revision=was.revision + 1, mass=True, adopt=[], force=False)
    app = replace(app, needs=await needs(call, now, app, cluster, documents, known))
    entries = carried(documents, known, prune=app.prune)
    made = await _prepared(call, now, app, entries, known, {}, outside, of=number)
    return await _superseding(call, made, known, supersede=supersede, asks=asks)


async def _superseding(
    call: Call, made: Application, known: Mapping[Ref, Entry], *, supersede: bool, asks: bool
) -> Application:
    """A revision with what replaces the versions that are coming to its objects, as far as that is wanted."""
    if not made.preview.waits:
        return made
    shot = await snapshot(call, made.now, made.app, made.entries, known)
    taken = await changes.superseding(call, shot, made.preview, asked=supersede or asks, strict=supersede)
    return dataclasses.replace(made, superseding=taken)


def _as_before(entry: Entry, known: Mapping[Ref, Entry]) -> Entry:
    """An entry as the app has it, if only versions of config keys differ: equal values are nothing new."""
    was = known.get(str(entry.ref))
    if entry.ref.own and was is not None and alike(entry.document, was.document):
        return replace(entry, document=was.document)
    return entry


async def _prepared(
    call: Call,
    now: AppState,
    app: App,
    entries: tuple[Entry, ...],
    known: Mapping[Ref, Entry],
    places: Mapping[Ref, str],
    outside: Outside | None,
    of: int = 0,
) -> Application:
    shot = await snapshot(call, now, replace(app, paused=False), entries, known, outside)
    preview = play(shot)
    if preview.blocked is not None and preview.blocked.code == "mass":
        raise InputInvalid(f"app {now.name!r}: {preview.blocked.text}", field="mass")
    await _tell_owners(call, shot, preview)
    made = await changes.prepared(call, now.name, preview, places)
    if app.atomic:
        _check_atomic(call, preview, made)
    if outside is not None:
        await changes.rehearsed(outside, preview)
    return Application(
        now=now,
        app=app,
        entries=entries,
        preview=preview,
        changes=made,
        mutation=await recorded(call, now, app, entries, of, "rollback" if of else "apply"),
    )


async def _tell_owners(call: Call, shot: Snapshot, preview: Preview) -> None:
    """Name the revision and the author for each object that belongs to another app."""
    known = dict[str, str]()
    for ref, why in preview.refused.items():
        name = app_of(shot.live[ref].owner) if ref in shot.live else ""
        if not name:
            continue
        if name not in known:
            known[name] = await latest(call, name)
        preview.refused[ref] = f"{why} ({known[name]})" if known[name] else why


def _settings(spec: AppSpec, now: AppState) -> App:
    """The settings of the app from the files and the command line; those of other commands stay."""
    told = {name: value for name, value in asdict(spec).items() if name != "name" and value is not None}
    if (history := told.get("history")) is not None and not 1 <= history <= 100:
        refuse("history", str(history), "1 to 100 revisions", field="history")
    if (deadline := told.get("deadline")) is not None and not deadline > 0:
        refuse("deadline", f"{deadline:g} s", "a time above 0", field="deadline")
    if now.stored is None:
        return App(revision=1, **told)
    was = now.stored.record
    return App(revision=was.revision + 1, paused=was.paused, resumed=was.resumed, needs=was.needs, **told)


def _adopted(refs: Sequence[str], bundle: Bundle) -> list[str]:
    known = sorted(bundle.places)
    for ref in refs:
        if ref not in (ALL, "all") and ref not in bundle.places:
            near = nearest(ref, known, "all, or an object of the files")
            raise InputInvalid(f"--adopt: found {ref!r}{near}", field="adopt")
    found = [ALL] if {ALL, "all"} & set(refs) else list(dict.fromkeys(refs))
    if len(found) > MAX_ADOPTED:
        refuse("--adopt", f"{len(found)} objects", f"at most {MAX_ADOPTED}, or all", field="adopt")
    return found


def _check_atomic(call: Call, preview: Preview, made: Mapping[Ref, Mutation]) -> None:
    """Refuse what farms cannot write in one transaction."""
    foreign = sorted({str(act.ref) for _, act in preview.acts if not act.ref.own})
    if foreign:
        refuse("--atomic", listed(foreign), "farmd's own objects alone: Kubernetes has no transactions")
    if len({step for step, _ in preview.acts}) > 1:
        found = f"changes in {len({step for step, _ in preview.acts})} steps"
        refuse("--atomic", found, "one step, and no removal after it: a gate waits between steps")
    written = [write for each in made.values() for write in each.operations if write.key != call.keys.cluster]
    if over := changes.over_one_transaction(written):
        refuse("--atomic", over, f"at most {changes.ONE_TRANSACTION}")


async def _before(store: AppStore, now: AppState) -> int:
    """The revision that a rollback without a number means: the last reached one before the wanted."""
    revision = wanted(now).revision
    if now.state.reached and now.state.reached != revision:
        return now.state.reached
    last = await store.tracker(now.name, revision)
    older = [number for number in await store.revisions(now.name) if number < (last.of or revision)]
    if not older:
        raise NotFound(f"app {now.name!r} has no revision before {revision}", id=now.name)
    return older[-1]


# Waiting until an app has reached a revision, or is gone, with its progress.


async def reached(call: Call, name: str, revision: int, timeout: float, report: Report) -> AppState:
    """Wait until an app has reached a revision and collected what that left.

    Raises:
        EndedOtherwise: the revision failed, another one was wanted meanwhile, or the app is being deleted.
        WaitTimeout: it is not there yet; it goes on.
    """

    def done(now: AppState, _: bool) -> bool:
        if now.stored is None or now.stored.record.deleting or now.stored.record.revision != revision:
            return True
        if falls_back(now.stored.record, now.state):
            back = now.state.effective == now.state.reached and now.state.swept >= revision
            return back or bool(_stuck(now))
        failed = now.state.refused == revision
        return failed or (now.state.reached == revision and now.state.swept >= revision)

    async def late(now: AppState) -> WaitTimeout:
        text = f"app {name!r} has not reached revision {revision} after {timeout:g} s: {told(now)}"
        return WaitTimeout(text, hint=await _why(call, now))

    found = await waiting.until(
        call,
        lambda: standing(call, name),
        done,
        late,
        timeout,
        lambda now: report(look(now)),
        lambda now: (now.status, now.state.wave, now.state.effective),
    )
    await _refuse_otherwise(call, found, revision)
    return found


async def _refuse_otherwise(call: Call, found: AppState, revision: int) -> None:
    name, record = found.name, found.stored.record if found.stored is not None else None
    if record is None or record.deleting:
        raise EndedOtherwise(f"app {name!r} was deleted before it reached revision {revision}")
    if record.revision != revision:
        by = await _author(call, name, record.revision)
        raise EndedOtherwise(f"app {name!r}: {by} applied revision {record.revision} meanwhile")
    if stuck := _stuck(found):
        raise EndedOtherwise(f"app {name!r}: {stuck}", hint=f"farmctl app describe {name}")
    if found.state.refused == revision:
        back = f"; revision {found.state.effective} is back" if found.state.effective != revision else ""
        raise EndedOtherwise(
            f"app {name!r}: revision {revision} failed: {found.state.failure}{back}",
            hint=f"farmctl app describe {name}",
        )


def _stuck(now: AppState) -> str:
    """Why the way back from the wanted revision failed, too; empty: it did not."""
    told, record = now.status, now.stored.record if now.stored is not None else None
    if told is None or record is None or not (now.reported and falls_back(record, now.state)):
        return ""
    return told.reason if told.phase == "failed" and told.effective == now.state.effective else ""


async def _author(call: Call, name: str, revision: int) -> str:
    """The author of a revision, if known."""
    try:
        return (await AppStore(call.client, call.keys).tracker(name, revision)).by
    except (NotFound, RecordInvalid, AccessDenied):
        return "somebody"


async def gone(call: Call, name: str, timeout: float, report: Report) -> None:
    """Wait until a deleted app is gone, with its objects or the marks on them.

    Raises:
        WaitTimeout: it is still there; it goes on.
    """

    async def late(now: AppState) -> WaitTimeout:
        text = f"app {name!r} is still there after {timeout:g} s: {told(now)}"
        return WaitTimeout(text, hint=await _why(call, now))

    await waiting.until(
        call,
        lambda: standing(call, name),
        lambda now, _: now.stored is None,
        late,
        timeout,
        lambda now: report(look(now)),
        lambda now: (now.status, now.stored is None),
    )


def look(now: AppState) -> Look:
    """How far an app is, for the progress."""
    return Look(noun="app", name=now.name, state=told(now), desired=0, counts=False)


def told(now: AppState) -> str:
    """How far an app is, in one line: ``applying, wave 1 of 2, 3 of 5 ready: waits for rc/web (2 of 3)``."""
    if now.stored is None:
        return "gone"
    if now.unowned or now.lost:
        return now.unowned or now.lost
    if now.status is None or not now.reported:
        return f"no farm has looked at {'it' if now.status is None else 'its last change'} yet"
    waits = listed([_waits(each) for each in now.status.waiting], 3)
    why = now.status.reason or (f"waits for {waits}" if now.status.waiting else "")
    return f"{now.status.progress}{f': {why}' if why else ''}"


def _waits(each: ObjectStatus) -> str:
    return f"{each.ref} ({each.why})" if each.why else each.ref


async def _why(call: Call, now: AppState) -> str:
    members = await overview.farms(call.client, call.keys)
    if not any(KIND in member.kinds for member in members):
        return "no live farm applies apps; start one with farmd run, and it continues"
    blocked = now.reported and now.status is not None and now.status.state == "blocked"
    return f"{'' if blocked else 'it continues; '}farmctl app describe {now.name}"
