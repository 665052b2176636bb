"""Changes of an app's record by people: a new revision with its tracker, or a single command.

A tracker is written in the transaction that wants it (D1). What must never break: the record is compared with
the one that was read, so of two people who change an app at once the second one is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from farmd.apps.facts import Ref
from farmd.apps.scene import AppState, standing
from farmd.commands.mutation import Call, Change, Mutation, Scalar, guard, registered
from farmd.commands.resolving import needed, sourced
from farmd.overview.owners import farms
from store.apps import KIND, App, AppStore, Entry, ResourceTracker, tracker
from store.deployments import OUTPUTS
from store.errors import AccessDenied, Conflict, NotFound, RecordInvalid, refuse
from store.farms import CLUSTERS, of_clusters
from store.features import CONFIG, FOLLOW, SERVICE_PODS
from store.services import NOUN as SERVICE
from store.times import rfc3339
from store.words import listed

# Who said last what the objects of an app are.


async def latest(call: Call, name: str) -> str:
    """An app's revision, and who applied it and when, as far as that can be told; empty: there is no such
    app.
    """
    store = AppStore(call.client, call.keys)
    try:
        found = await store.find(name)
    except RecordInvalid:
        return "its record does not decode"
    if found is None:
        return ""
    number = found.record.revision
    try:
        tracker = await store.tracker(name, number)
    except (NotFound, RecordInvalid, AccessDenied):  # a person removed it, or the doctor tells of it
        return f"revision {number}"
    return f"revision {number}, applied by {tracker.by} at {rfc3339(tracker.at)}"


async def found(call: Call, name: str) -> AppState:
    """An app that there is.

    Raises:
        NotFound: there is none.
    """
    now = await standing(call, name)
    if now.stored is None:
        raise NotFound(f"app {name!r} does not exist", kind=KIND, id=name, hint="farmctl app list")
    return now


async def existing(call: Call, name: str) -> AppState:
    """An app that there is, and is not being deleted.

    Raises:
        NotFound: there is none. Conflict: it is being deleted.
    """
    now = await found(call, name)
    refuse_deleting(now)
    return now


def refuse_deleting(now: AppState) -> None:
    """Refuse a change of an app that ends.

    Raises:
        Conflict: it is being deleted.
    """
    if now.stored is not None and now.stored.record.deleting:
        hint = f"a farm finishes it; farmctl app describe {now.name} shows its progress"
        raise Conflict(f"app {now.name!r} is being deleted", id=now.name, hint=hint)


def wanted(now: AppState) -> App:
    """What people want of an app that there is."""
    assert now.stored is not None
    return now.stored.record


async def recorded(
    call: Call, now: AppState, app: App, entries: Sequence[Entry], of: int = 0, action: str = "apply"
) -> Mutation:
    """A revision and the wish for it in one transaction; nothing, where the app has it already.

    Raises:
        TooLarge: its documents do not fit into a record. Locked: somebody holds the app's mutation lock.
    """
    name, stored, store = now.name, now.stored, AppStore(call.client, call.keys)
    made = tracker(app.revision, entries, of=of, by=call.actor, at=call.clock.now(), reason=call.reason)
    if stored is not None and action == "apply" and await _same(store, now, app, made):
        return Mutation(change(name, action))
    before: dict[str, Scalar] = {} if stored is None else {"revision": stored.record.revision}
    after: dict[str, Scalar] = {"revision": app.revision, "objects": len(entries), "digest": made.digest[:12]}
    return await _written(call, now, app, change(name, action, before, after), store.record(name, made))


async def said(
    call: Call, now: AppState, action: str, *, destructive: bool = False, **fields: Any
) -> Mutation:
    """A change of single fields of an app's record.

    Raises:
        Locked: somebody holds its mutation lock.
    """
    was = wanted(now)
    differs = {name: value for name, value in fields.items() if getattr(was, name) != value}
    if not differs:
        return Mutation(change(now.name, action))
    before = {name: getattr(was, name) for name in differs}
    told = change(now.name, action, before, differs, destructive=destructive)
    return await _written(call, now, replace(was, **differs), told)


def change(
    name: str,
    action: str,
    before: Mapping[str, Scalar] | None = None,
    after: Mapping[str, Scalar] | None = None,
    *,
    destructive: bool = False,
) -> Change:
    """A change of an app for people and the audit."""
    return Change(
        KIND,
        name,
        name,
        f"app.{action}",
        before=dict(before or {}),
        after=dict(after or {}),
        destructive=destructive,
    )


async def _written(call: Call, now: AppState, app: App, told: Change, *more: Any) -> Mutation:
    held = await guard(call, KIND, now.name, f"app {now.name!r}")
    write = AppStore(call.client, call.keys).want(now.name, now.stored, app)
    return Mutation(told, (await registered(call), *held.operations, *more, write))


async def _same(store: AppStore, now: AppState, app: App, made: ResourceTracker) -> bool:
    """Whether the wanted revision has these very entries and settings, and did not fail.

    What a person allows for one revision is something new until that one is reached.
    """
    was, state = wanted(now), now.state
    if state.reached == was.revision:
        app = replace(app, adopt=was.adopt, mass=was.mass, force=was.force)
    if state.refused == was.revision or replace(app, revision=was.revision) != was:
        return False
    try:
        return (await store.tracker(now.name, was.revision)).digest == made.digest
    except NotFound:
        return False


# What a farm must know to keep an app (R11).


def _of_documents(entries: Sequence[Entry]) -> Iterator[str]:
    """What a farm must know to read these documents, so that an older one leaves them alone (R11)."""
    own = [each.document for each in entries if each.ref.own and each.document is not None]
    if any(map(sourced, own)):
        yield CONFIG
    yield from (feature for each in own for feature in needed(each))
    if any(each.get("follow") for each in own):
        yield FOLLOW
    services = [each.document or {} for each in entries if each.ref.own and each.ref.kind == SERVICE]
    if any(map(_outputs, services)):
        yield OUTPUTS
    if any(each.ref.kind == SERVICE and "pods" in (each.document or {}) for each in entries if each.ref.own):
        yield SERVICE_PODS


def _outputs(document: Mapping[str, Any]) -> bool:
    """Whether a service sends its output somewhere, or has sealed secrets."""
    container = document.get("container") or {}
    return bool(container.get("sealed") or (container.get("log") or {}).get("to"))


async def needs(
    call: Call,
    now: AppState,
    app: App,
    cluster: str,
    documents: Sequence[Entry],
    known: Mapping[Ref, Entry],
) -> list[str]:
    """The features that an app needs with these documents (R11): that of one cluster, as long as it wants
    objects in Kubernetes or a farm may have to collect some.

    Raises:
        Conflict: no farm serves it. InputInvalid: farms serve several, and none is named; or another one than
            the present is.
    """
    needed = of_clusters(app.needs)
    others = [need for need in app.needs if need not in needed]
    held = any(not each.ref.own for each in known.values())
    foreign = [str(each.ref) for each in (*known.values(), *documents) if not each.ref.own]
    if foreign:
        found = [*others, await _cluster(call, needed, cluster, foreign[0], held=held)]
    else:
        collected = now.stored is None or now.state.swept >= now.stored.record.revision
        found = others if collected else app.needs
    return sorted({*found, *_of_documents(documents)})


async def _cluster(call: Call, needed: Sequence[str], cluster: str, ref: Ref, *, held: bool) -> str:
    """The feature of the cluster that an app needs; ``held``: objects may stand in its present one, which
    nobody would collect from another.
    """
    served = {
        feature for member in await farms(call.client, call.keys) for feature in of_clusters(member.features)
    }
    named = [f"{CLUSTERS}{cluster}"] if cluster else needed or sorted(served)
    if held and needed and named != needed:
        present = repr(needed[0].removeprefix(CLUSTERS))
        refuse("--cluster", repr(cluster), f"{present}, where objects of the app are: prune them first")
    if len(named) > 1:
        refuse("--cluster", f"farms that serve {listed(named)}", "the name of one", field="cluster")
    if not named or named[0] not in {*served, *needed}:  # a farm of a cluster that is known comes back
        what = named[0] if named else "a Kubernetes cluster"
        raise Conflict(f"{ref}: no farm serves {what}", hint="farmctl farm list; docs/kubernetes.md")
    return named[0]
