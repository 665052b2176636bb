"""Finds the records that apps name in a farm's copies of the store, and wakes the apps that name them.

All apps of a farm share one index, so an idle app costs no request and no timer (R23a).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from farmd import kinds
from farmd.commands.bundled import Bundled
from farmd.dispatch.model import Ref, takes
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store.apps import ALL, KIND, AppStore, DispatchState
from store.cache import PrefixCache
from store.entry import Entry, Stored
from store.errors import NotFound, RecordInvalid
from store.families import APPS, DEPLOYMENTS, FAMILIES, named
from store.services import NOUN as SERVICE

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
        self.parts: dict[str, Bundled] = {noun: kinds.load(path) for noun, path in kinds.bundled().items()}
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
        self._registration: Entry | None = None
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

    async def registration(self) -> Entry | None:
        """The record of the cluster, which each creation compares; it is read once for all apps."""
        if self._registration is None:
            self._registration = await self._context.client.read(self._context.keys.cluster)
        return self._registration

    def doubt_registration(self) -> None:
        """Read the cluster's record again, because a change was refused."""
        self._registration = None

    def cached(self, noun: str) -> bool:
        """Whether the farm has a copy of the records of a noun that tells all of them."""
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
            for ref in sorted(taken & await self._names(other, stored.record.revision)) if taken else ():
                found.setdefault(ref, []).append(other)
        return found

    async def _names(self, app: str, revision: int) -> frozenset[Ref]:
        """The objects that a revision of an app wants; none where it was removed or does not decode, because
        nobody can apply it then.
        """
        number, names = self._named.get(app, (0, frozenset[Ref]()))
        if number == revision:
            return names
        store = AppStore(self._context.client, self._context.keys)
        try:
            async with self.reading:
                entries = await store.entries(app, revision)
        except (NotFound, RecordInvalid):
            return frozenset()
        names = frozenset(str(entry.ref) for entry in entries if not entry.left)
        self._named[app] = revision, names
        return names

    def _state(self, app: str) -> DispatchState:
        """How far an app is, as the farm's copy has it."""
        stored = self._context.caches.work.get(self._context.keys.work(KIND, app))
        return (stored.record.dispatch if stored is not None else None) or DispatchState()
