"""Reads the facts of an app from a farm's copies of the store, and wakes the apps that a change concerns."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from farmd import kinds
from farmd.apps.facts import Live, Ref, Snapshot, both, takes
from farmd.apps.plan import falls_back, revisions, target
from farmd.apps.protocols import Objects
from farmd.apps.sweep import leftovers
from farmd.commands.bundled import Bundled
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store.apps import ALL, KIND, App, AppStore, DispatchState, Entry
from store.cache import PrefixCache
from store.entry import Entry as StoreEntry
from store.entry import Stored
from store.errors import InputInvalid, NotFound, RecordInvalid
from store.families import APPS, DEPLOYMENTS, FAMILIES, named
from store.services import NOUN as SERVICE
from store.work import Work

# Finds the records that apps name in a farm's copies of the store, and wakes the apps that name them.
#
# All apps of a farm share one index, so an idle app costs no request and no timer (R23a).

# A thousand apps that begin at once would wait for sixteen connections until their requests time out.
READING_AT_ONCE = 16
ACTING_AT_ONCE = 8


class Index:
    """The records of all nouns that bundles hold, by what people call them.

    ``parts`` says how bundles hold each noun. ``waits``: objects that apps wait for, with these apps;
    ``behind``: of each such app the apps that have what it waits for.
    ``reading`` and ``acting`` limit what all apps of the farm ask of the store at a time.
    """

    def __init__(self, context: Context) -> None:
        self.parts: dict[str, Bundled] = {noun: part() for noun, part in kinds.bundled().items()}
        self.waits: dict[Ref, set[str]] = {}
        self.behind: dict[str, list[str]] = {}
        self.reading = asyncio.Semaphore(READING_AT_ONCE)
        self.acting = asyncio.Semaphore(ACTING_AT_ONCE)
        self._context = context
        self._trees: dict[str, PrefixCache[Any]] = {}
        self._ids: dict[Ref, str] = {}
        self._refs: dict[str, Ref] = {}
        self._wakers: dict[Ref, dict[str, Wake]] = {}
        self._apps: dict[str, Wake] = {}
        self._waited: dict[str, set[Ref]] = {}
        self._registration: StoreEntry | None = None
        for noun in self.parts:
            family = FAMILIES[kinds.family_of(noun)]
            if family.cached and family.claimed:  # how a service is, its record does not tell
                self._trees[noun] = context.caches.tree(family)
                self._watch(noun, self._trees[noun])
        self._goals: dict[str, set[Ref]] = {}
        self._named: dict[str, tuple[int, frozenset[Ref]]] = {}
        self._deployments = context.caches.tree(DEPLOYMENTS)
        self._deployments.subscribe(self._deployed)
        context.caches.work.subscribe(self._state_changed)
        self._state_changed(set(context.caches.work.entries))

    @property
    def trees(self) -> Collection[PrefixCache[Any]]:
        """The copies that it looks into."""
        return self._trees.values()

    async def registration(self) -> StoreEntry | None:
        """The record of the cluster, which each creation compares; it is read once for all apps."""
        if self._registration is None:
            self._registration = await self._context.client.read(self._context.keys.cluster)
        return self._registration

    def doubt_registration(self) -> None:
        """Read the cluster's record again, because a change was refused."""
        self._registration = None

    def cached(self, noun: str) -> bool:
        """Whether the farm has a complete copy of a noun's records."""
        return noun in self._trees

    def find(self, noun: str, name: str) -> Stored[Any] | None:
        """The record of a name, if the copy has it."""
        tree = self._trees[noun]
        key = self._ids.get(f"{noun}/{name}", "")
        return tree.get(key) if key else None

    def broken(self, noun: str) -> bool:
        """Whether the copy has records of a noun that do not decode."""
        return bool(self._trees[noun].broken)

    # -- who hears of what ---------------------------------------------------------------------
    def attach(self, app: str, wake: Wake) -> None:
        """Set ``wake`` when the app's own state changes."""
        self._apps[app] = wake

    def follow(self, refs: Collection[Ref], app: str, wake: Wake) -> None:
        """Set ``wake`` also when one of these objects is made, changed or removed, or another app waits for
        it.
        """
        for ref in refs:
            self._wakers.setdefault(ref, {})[app] = wake

    def unfollow(self, refs: Collection[Ref], app: str) -> None:
        """The app names these objects no more."""
        for ref in refs:
            wakers = self._wakers.get(ref, {})
            wakers.pop(app, None)
            if not wakers:
                self._wakers.pop(ref, None)

    def detach(self, app: str) -> None:
        """The app's worker ended."""
        self._apps.pop(app, None)

    def _wake(self, ref: Ref) -> None:
        for wake in self._wakers.get(ref, {}).values():
            wake.set()

    # -- what changes --------------------------------------------------------------------------
    def _watch(self, noun: str, tree: PrefixCache[Any]) -> None:
        by_name = named(tree.family)

        def changed(keys: Collection[str]) -> None:
            for key in keys:
                stored = tree.get(key)
                before = self._refs.get(key)
                if stored is None:
                    self._refs.pop(key, None)
                    if before is not None and self._ids.get(before) == key:
                        del self._ids[before]
                else:
                    name = stored.record.name if by_name else self._context.keys.last_part(key)
                    self._refs[key] = f"{noun}/{name}"
                    self._ids[self._refs[key]] = key
                for ref in {before, self._refs.get(key)} - {None}:
                    self._wake(str(ref))

        tree.subscribe(changed)
        changed(set(tree.entries))

    def _deployed(self, changed: Collection[str]) -> None:
        """A deployment began, went on or ended, and so did its services."""
        for key in changed:
            stored = self._deployments.get(key)
            names = [goal.name for goal in stored.record.goals] if stored is not None else []
            before, after = self._goals.pop(key, set()), {f"{SERVICE}/{name}" for name in names}
            if after:
                self._goals[key] = after
            for ref in before | after:
                self._wake(ref)

    def _state_changed(self, changed: Collection[str]) -> None:
        """What apps wait for, from their states."""
        keys, prefix = self._context.keys, self._context.keys.work(KIND, "")
        for key in changed:
            if not key.startswith(prefix):
                continue
            app = keys.last_part(key)
            state = self._state(app)
            before, after = self._waited.pop(app, set()), set(state.waits)
            former = self.behind.pop(app, [])
            if after:
                self._waited[app], self.behind[app] = after, state.behind
            for ref in before - after:
                self.waits[ref].discard(app)
                if not self.waits[ref]:
                    del self.waits[ref]
            for ref in after - before:
                self.waits.setdefault(ref, set()).add(app)
                self._wake(ref)
            woken = {app, *former, *state.behind} if (before, former) != (after, state.behind) else {app}
            for each in woken & self._apps.keys():
                self._apps[each].set()

    def others(self, refs: Collection[Ref], app: str) -> Mapping[Ref, Sequence[str]]:
        """Of these objects those that other apps wait for, with these apps by name; ``*``: those that wait
        for more of this app's than are known.
        """
        waiting = {ref: sorted(self.waits.get(ref, set()) - {app}) for ref in refs}
        waiting[ALL] = sorted(other for other in self.waits.get(ALL, ()) if app in self.behind[other])
        return {ref: apps for ref, apps in waiting.items() if apps}

    async def takers(self, refs: Collection[Ref], app: str, *, going: bool) -> Mapping[Ref, Sequence[str]]:
        """Of these objects those that the wanted revisions of other apps take over, with these apps by name.

        A worker tells what it waits for only once it has come to the object's step; until then, and while no
        farm works on that app, its record and its revision alone tell. ``going``: the objects are to be
        removed, so the records are read again.

        Raises:
            StoreError: they cannot be read, so nothing may be removed.
        """
        if not refs:
            return {}
        apps = self._context.caches.tree(APPS)
        if going:
            await apps.barrier()
        found: dict[Ref, list[str]] = {}
        for key, stored in sorted(apps.entries.items()):
            other = self._context.keys.last_part(key)
            taken = {ref for ref in refs if other != app and takes(stored.record, self._state(other), ref)}
            for ref in sorted(taken & await self._names(other, stored)) if taken else ():
                found.setdefault(ref, []).append(other)
        return found

    async def _names(self, app: str, stored: Stored[App]) -> frozenset[Ref]:
        """The objects that an app's wanted revision has; none where it was removed or does not decode,
        because nobody can apply it then.
        """
        index, names = self._named.get(app, (0, frozenset[Ref]()))
        if index == stored.index:
            return names
        store = AppStore(self._context.client, self._context.keys)
        try:
            async with self.reading:
                entries = await store.entries(app, stored.record.revision)
        except (NotFound, RecordInvalid):
            return frozenset()
        names = frozenset(str(entry.ref) for entry in entries if not entry.left)
        self._named[app] = stored.index, names
        return names

    def _state(self, app: str) -> DispatchState:
        """How far an app is, as the farm's copy has it."""
        stored = self._context.caches.work.get(self._context.keys.work(KIND, app))
        return (stored.record.dispatch if stored is not None else None) or DispatchState()


# The facts of an app's plan: its revisions, its objects as they stand, and what other apps wait for.
#
# It decides nothing. A revision is read once for each ModifyIndex of the app's record, because its number may
# stand for another one after the app was deleted and made again, or the store was restored.


class Reader:
    """Reads for one app under one claim; ``places`` are its records in Consul and its objects in
    Kubernetes."""

    __slots__ = ("_app", "_context", "_index", "_known", "_known_at", "_places")

    def __init__(self, context: Context, index: Index, app: str, places: Mapping[bool, Objects]) -> None:
        self._context, self._index, self._app, self._places = context, index, app, places
        self._known: dict[int, Mapping[Ref, Entry]] = {}
        self._known_at = 0

    @property
    def work(self) -> Stored[Work] | None:
        """The app's state, as it was read."""
        return self._context.caches.work.get(self._context.keys.work(KIND, self._app))

    async def read(self, stored: Stored[App], frozen: str | None, tried: Mapping[Ref, str]) -> Snapshot:
        """All that a plan of this record rests on. ``tried``: changes that could not be made last time, with
        the reasons.

        Raises:
            StoreError: a revision or an object cannot be read, so nothing may be planned.
        """
        app, work = stored.record, self.work
        if stored.index != self._known_at:
            self._known, self._known_at = {}, stored.index
        state = (work.record.dispatch if work is not None else None) or DispatchState()
        goal, former = target(app, state), revisions(app, state)
        entries = await self._entries(goal, former)
        aim = entries.get(goal, {})
        wanted = {ref: each for ref, each in aim.items() if not each.left}
        left = {ref: each for ref, each in aim.items() if each.left}
        before = {ref: each for number in sorted(former) for ref, each in entries[number].items()}
        concerned = {**before, **left, **wanted}
        steady = state.reached == state.effective == goal and state.swept == app.revision
        shot = Snapshot(
            name=self._app,
            app=app,
            state=state,
            wanted=tuple(wanted.values()),
            left=left,
            former=before,
            live=await self._live(concerned, wanted, steady),
            others=self._index.others(concerned, self._app),
            behind=self._index.behind,
            frozen=frozen,
            tried=tried,
            now=self._context.clock.now(),
        )
        going = app.prune or app.deleting == "objects" or falls_back(app, state)
        takers = await self._index.takers(leftovers(shot), self._app, going=going)
        return dataclasses.replace(shot, others=both(shot.others, takers)) if takers else shot

    async def _entries(self, goal: int, former: set[int]) -> Mapping[int, Mapping[Ref, Entry]]:
        """The entries of these revisions; others are forgotten."""
        store = AppStore(self._context.client, self._context.keys)
        wanted = former | ({goal} - {0})
        self._known = {number: entries for number, entries in self._known.items() if number in wanted}
        for number in sorted(wanted - self._known.keys()):
            try:
                async with self._index.reading:
                    found = await store.entries(self._app, number)
                self._known[number] = {str(entry.ref): self._treated(entry) for entry in found}
            except NotFound:  # a person removed it: what is left of it is found by its mark alone
                if number == goal:
                    raise
                self._known[number] = {}
        return self._known

    @staticmethod
    def _treated(entry: Entry) -> Entry:
        """What ends by itself and is deleted later is not made again."""
        kind = kinds.KINDS.get(kinds.family_of(entry.ref.kind)) if entry.ref.own else None
        return replace(entry, apply="once") if kind is not None and kind.ended else entry

    async def _live(
        self, concerned: Mapping[Ref, Entry], wanted: Mapping[Ref, Entry], steady: bool
    ) -> Mapping[Ref, Live]:
        """The objects as they stand; those of former revisions without their documents."""
        asked = {
            ref: each if ref in wanted else replace(each, document=None) for ref, each in concerned.items()
        }
        found: dict[Ref, Live] = {}
        for own in sorted({each.ref.own for each in asked.values()} | self._places.keys()):
            part = {ref: each for ref, each in asked.items() if each.ref.own is own}
            if own not in self._places:
                raise InputInvalid(f"{next(iter(part))}: this farm serves no Kubernetes cluster")
            self._places[own].follow(part.keys())
            found |= await self._places[own].read(part, steady)
        return found
