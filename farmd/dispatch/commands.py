"""The words of people to an app that stands: pause, resume, release, delete."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from farmd.commands.mutation import Call, Mutation
from farmd.dispatch.plan import decide
from farmd.dispatch.ports import Outside
from farmd.dispatch.preview import Preview, play
from farmd.dispatch.revision import existing, recorded, said, wanted
from farmd.dispatch.standing import AppState, former, kept, snapshot
from store.apps import AppStore
from store.errors import Conflict, InputInvalid, refuse
from store.words import listed


async def pause(call: Call, name: str) -> Mutation:
    """Let farms touch nothing of an app until it is resumed.

    Raises:
        NotFound: there is none. Locked: somebody holds its mutation lock.
    """
    return await said(call, await existing(call, name), "pause", paused=True)


async def resume(call: Call, name: str, outside: Outside | None = None) -> Mutation:
    """Let farms go on with an app that is paused, or whose objects bear marks that Consul does not know.

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
            text = f"app {now.name!r}: no farm has reported its marks, and no kubeconfig says where they are"
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
            refuse("release", found, f"an object that is left: {listed(sorted(left)) or 'there is none'}")
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
