"""The facts of an app's plan: its revisions, its objects as they stand, and what other apps wait for.

It decides nothing. A revision never changes, so each is read once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from msgspec.structs import replace

from farmd import kinds
from farmd.dispatch.index import Index
from farmd.dispatch.model import Live, Ref, Snapshot, both
from farmd.dispatch.plan import falls_back, revisions, target
from farmd.dispatch.ports import Objects
from farmd.dispatch.sweep import leftovers
from farmd.work.context import Context
from store.apps import KIND, App, AppStore, DispatchState, Entry
from store.entry import Stored
from store.errors import InputInvalid, NotFound
from store.work import Work


class Reader:
    """Reads for one app under one claim; ``places`` are its records in Consul and its objects in
    Kubernetes."""

    __slots__ = ("_app", "_context", "_index", "_known", "_places")

    def __init__(self, context: Context, index: Index, app: str, places: Mapping[bool, Objects]) -> None:
        self._context, self._index, self._app, self._places = context, index, app, places
        self._known: dict[int, Mapping[Ref, Entry]] = {}

    @property
    def work(self) -> Stored[Work] | None:
        """The app's state, as it was read."""
        return self._context.caches.work.get(self._context.keys.work(KIND, self._app))

    async def read(self, app: App, frozen: str | None, tried: Mapping[Ref, str]) -> Snapshot:
        """All that a plan rests on. ``tried``: changes that could not be made last time, with the reasons.

        Raises:
            StoreError: a revision or an object cannot be read, so nothing may be planned.
        """
        work = self.work
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
