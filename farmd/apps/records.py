"""The objects of an app that are records in Consul: read from the farm's copies, changed by their nouns'
commands.

What must never break: a record is marked in the very write that makes or changes it, and each change names
the version that it was prepared from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard

from farmd import kinds
from farmd.apps import changes
from farmd.apps.facts import Act, Live, Ref, owner_of
from farmd.apps.reader import Index
from farmd.commands import difference
from farmd.commands.bundled import Bundled, BundledNoun, FoundRecord, Wish, by_name
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Mutation
from farmd.commands.waiting import Spells
from farmd.pods.state import observed, settling
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from scheduler.decide import eligibility
from store import codec
from store.apps import Entry
from store.consul.client import ConsulClient, ReadAhead
from store.entry import Entry as StoreEntry
from store.errors import Conflict, InputInvalid, NotFound, RecordInvalid, StoreError
from store.families import FAMILIES, named
from store.keys import Keys
from store.transaction import Group

# The keys that a command reads before it changes a record, and what the farm's copy knows of them.
#
# A change compares all that the copy told, so nothing is read before it. After a refusal all is read,
# because others may have the name, or have left it behind, hold the lock, or have changed the record.


def read_for(index: Index, keys: Keys, act: Act) -> list[str]:
    """The keys that a command reads one after the other; none of a noun of which there is no copy."""
    noun, name = act.ref.kind, act.ref.name
    if not index.cached(noun):
        return []
    family, stored = kinds.family_of(noun), index.find(noun, name)
    called = [keys.name(family, name)] if named(family) else []
    if stored is None:
        return called if act.verb == "create" else []
    found = [*called, stored.key, keys.mutation_lock(family, keys.last_part(stored.key))]
    sha = difference.manifest_of(stored.record)
    return [*found, keys.manifest(sha)] if sha and "pod" in act.differs else found


def known_copies(index: Index, keys: Keys, act: Act) -> dict[str, StoreEntry | None]:
    """What stands at these keys by a copy that has all of a record's fields: its name and the record, no
    lock; of a record that is not there, no name.
    """
    noun, family = act.ref.kind, FAMILIES[kinds.family_of(act.ref.kind)]
    if not (family.keep_unknown and index.cached(noun)):
        return {}
    stored, name = index.find(noun, act.ref.name), keys.name(family.name, act.ref.name)
    if stored is None:
        return {name: None} if act.verb == "create" else {}
    item, raw = keys.last_part(stored.key), stored.raw or codec.encode(stored.record)
    return {
        name: StoreEntry(name, codec.encode(item), 0),
        stored.key: StoreEntry(stored.key, raw, stored.index, stored.create_index, flags=stored.flags),
        keys.mutation_lock(family.name, item): None,
    }


# A verdict that rests on what no watch tells is looked at again after this time: that of a service whose
# deployment is over, and of a job none of whose members runs. A query parked on their trees, for apps alone,
# would be one of the few that a farm may have (R23).
POLL_SECONDS = 2.0
RUNNING_SECONDS = 30.0
# Why one object cannot be changed now, while others can.
OBSTACLES = (Conflict, NotFound, InputInvalid, RecordInvalid)

Commit = Callable[[Sequence[Group[Act]]], Awaitable[None]]


def _owns_pods(part: Bundled) -> bool:
    """Whether the records of a noun own pods."""
    return FAMILIES[kinds.family_of(part.noun)].owns_pods


def _judged_by_pods(part: Bundled) -> TypeGuard[BundledNoun[Any, Any]]:
    """Whether the verdict on a record follows from its pods."""
    return isinstance(part, BundledNoun) and part.of.judge is None and part.of.pods is not None


class Kept(NamedTuple):
    """What was seen of a record when it was as its document says, or in no file: true for that version."""

    document: dict[str, Any] | None
    version: int
    live: Live

    def stands(self, entry: Entry, version: int) -> bool:
        return self.document is entry.document and self.version == version


class Records:
    """The records of one app (``farmd.apps.protocols.Objects``); ``commit`` writes changes under its
    claim."""

    __slots__ = (
        "_doubted",
        "_managers",
        "_owners",
        "_refs",
        "_seen",
        "_spells",
        "_wake",
        "_wishes",
        "app",
        "commit",
        "context",
        "index",
    )

    def __init__(self, context: Context, index: Index, app: str, wake: Wake, commit: Commit) -> None:
        self.context, self.index, self.app, self.commit = context, index, app, commit
        self._wake = wake
        self._refs, self._owners = set[Ref](), set[str]()
        self._wishes: dict[Ref, tuple[Entry, Wish]] = {}
        self._seen: dict[Ref, Kept] = {}
        self._spells = Spells(context.clock)
        self._managers = dict[str, str]()  # the names of what manages records, as long as something is due
        self._doubted = set[Ref]()  # whose last change was refused or obstructed, as far as is known

    def call(self, entry: Entry | None = None, reason: str = "") -> Call:
        """The app as a caller of commands, which leaves to people what the entry's file does not state."""
        context = self.context
        wish = self._wish(entry) if entry is not None and entry.document is not None else None
        why = reason or f"app {self.app}"
        call = Call(context.client, context.keys, context.clock, context.ids, context.actor, why)
        return changes.speaking(call, owner_of(self.app), wish)

    # -- reading -------------------------------------------------------------------------------
    async def read(self, entries: Mapping[Ref, Entry], steady: bool) -> Mapping[Ref, Live]:
        """The records that exist of these entries; one that does not decode exists, and must wait."""
        found = {}
        self._wishes = {ref: kept for ref, kept in self._wishes.items() if ref in entries}
        self._seen = {ref: kept for ref, kept in self._seen.items() if ref in entries and steady}
        owners = set[str]()
        if steady:
            self._managers.clear()
        for ref, entry in entries.items():
            part, kept = self._part(entry), self._seen.get(ref)
            if kept is not None and kept.stands(entry, self._version(entry)):
                found[ref] = kept.live
                continue
            call = self.call(entry)
            try:
                there = await self._find(part, call, entry.ref.name)
            except RecordInvalid as error:  # neither gone nor free: the app's own until the record tells
                why = f"its record does not decode: {error.message}"
                found[ref] = Live(ref=entry.ref, owner=call.part_of, busy=why, broken=True)
                continue
            if there is None:
                continue
            if _owns_pods(part) and not steady:
                owner = there.stored.record.id
                owners.add(owner)
                self._follow_pods(owner)  # first: no change is missed while they are looked at
            found[ref] = live = await self._live(part, call, there, entry, steady)
            if steady and self.index.cached(part.noun):
                self._seen[ref] = Kept(entry.document, there.stored.index, live)
        self._unfollow_pods(self._owners - owners)
        return found

    def _version(self, entry: Entry) -> int:
        """The version of a record in the copy; 0: there is none."""
        stored = self.index.find(entry.ref.kind, entry.ref.name)
        return 0 if stored is None else stored.index

    def _part(self, entry: Entry) -> Bundled:
        if (part := self.index.parts.get(entry.ref.kind)) is None:
            raise InputInvalid(f"{entry.ref}: kind: this version of farmd knows no {entry.ref.kind!r}")
        return part

    async def _find(self, part: Bundled, call: Call, name: str) -> FoundRecord | None:
        if not self.index.cached(part.noun):
            return await part.find(call, name)
        stored = self.index.find(part.noun, name)
        if stored is None and self.index.broken(part.noun):  # a record that does not decode bears no name
            return await part.find(call, name)
        if stored is None:
            return None
        async with self.index.reading:
            return await by_name(call, part.seen(call, stored), self._managers)

    async def _live(self, part: Bundled, call: Call, there: FoundRecord, entry: Entry, steady: bool) -> Live:
        wish, differs = None, tuple[str, ...]()
        if entry.document is not None:
            wish = self._wish(entry)
            there = part.held(call, there, wish)
            differs = await changes.differing(part, call, there, wish, steady=steady)
        own, verdict, settles = there.part_of == call.part_of, Readiness("unknown"), None
        if own and not steady and wish is not None:
            verdict, settles = await self._verdict(part, call, there, wish)
        return changes.live(part, entry, there, differs, verdict, settles)

    def _wish(self, entry: Entry) -> Wish:
        ref = str(entry.ref)
        known = self._wishes.get(ref)
        if known is None or known[0] is not entry:
            assert entry.document is not None
            known = self._wishes[ref] = (entry, self._part(entry).wish(entry.document, entry.ignore))
        return known[1]

    # -- verdicts ------------------------------------------------------------------------------
    async def _verdict(
        self, part: Bundled, call: Call, there: FoundRecord, wish: Wish
    ) -> tuple[Readiness, float | None]:
        """How far a record is, and the seconds until time alone changes that."""
        if not _judged_by_pods(part):
            found = await part.verdict(call, there, self._spells, wish)
            return found, self._asked_again(part, there.stored.record)
        if failed := await part.failed(call, there.stored.record, wish):
            return Readiness("failed", failed), None
        return await self._serving(part, there.stored.record)

    def _asked_again(self, part: Bundled, record: Any) -> float | None:
        """Seconds until a verdict that is not told by pods may be another one; None: a watch tells.

        The end of a pod wakes the app, and what that means is recorded a moment later.
        """
        if not _owns_pods(part):
            return None if self.index.cached(part.noun) else POLL_SECONDS
        states = observed(self.context.fleet, record.id, 0.0, self.context.clock.mono()).values()
        runs = any(each.reality is not None and each.reality.phase == "running" for each in states)
        return RUNNING_SECONDS if runs else POLL_SECONDS

    async def _serving(self, part: BundledNoun[Any, Any], record: Any) -> tuple[Readiness, float | None]:
        """Whether all pods that an owner should have are available on the manifest that it names."""
        if record.disabled:
            return Readiness("ready", "disabled"), None
        context = self.context
        states = observed(context.fleet, record.id, record.min_healthy_time, context.clock.mono()).values()
        current = [state for state in states if not state.outdated(record.manifest, record.restart)]
        available = sum(state.available for state in current)
        desired = record.count if record.count is not None else await self._eligible(part, record)
        if available >= desired and len(current) == len(states):
            return Readiness("ready"), None
        return Readiness("progressing", f"{available} of {desired} available"), settling(states)

    async def _eligible(self, part: BundledNoun[Any, Any], record: Any) -> int:
        """How many nodes should have a pod of an owner that has one on each."""
        assert part.of.pods is not None
        request = part.of.pods.request(record, await self.context.manifests.of(record))
        return len(eligibility(request, self.context.fleet.view()).eligible)

    # -- following -----------------------------------------------------------------------------
    def follow(self, refs: Collection[Ref]) -> None:
        """Hear of these records alone."""
        wanted = set(refs)
        self.index.unfollow(self._refs - wanted, self.app)
        self.index.follow(wanted - self._refs, self.app, self._wake)
        self._refs = wanted

    def unfollow(self) -> None:
        """The worker ended."""
        self.index.unfollow(self._refs, self.app)
        self._refs = set()
        self._unfollow_pods(self._owners)

    def _follow_pods(self, owner: str) -> None:
        self.context.fleet.follow(owner, self.app, self._wake)
        self._owners.add(owner)

    def _unfollow_pods(self, owners: set[str]) -> None:
        for owner in owners:
            self.context.fleet.unfollow(owner, self.app)
        self._owners = self._owners - owners

    # -- writing -------------------------------------------------------------------------------
    async def act(self, acts: Sequence[Act], seq: int) -> Mapping[Ref, str]:  # noqa: ARG002 - fenced inside
        """Prepare the changes and commit them; what cannot be prepared waits."""
        async with self.index.acting:
            return await self._act(sorted(acts, key=self._place))

    async def _act(self, ordered: Sequence[Act]) -> Mapping[Ref, str]:
        keys = self.context.keys
        cluster = {keys.cluster: await self.index.registration()}

        async def prepared(act: Act) -> Mutation | str:
            known = cluster | ({} if str(act.ref) in self._doubted else known_copies(self.index, keys, act))
            ahead = [key for key in read_for(self.index, keys, act) if key not in known]
            async with self.index.reading, ReadAhead(self.context.client, ahead, known) as client:
                try:
                    return await self._mutation(act, client)
                except OBSTACLES as error:
                    return error.message

        # A single change is sent before the watch that told of it is parked again.
        single = len(ordered) == 1
        made = [await prepared(*ordered)] if single else await asyncio.gather(*map(prepared, ordered))
        found = list(zip(ordered, made, strict=True))
        acted = {str(act.ref) for act in ordered}
        self._doubted |= acted
        needed = [(act, each) for act, each in found if not isinstance(each, str) and each.needed]
        if needed:
            try:
                await self.commit([Group(each.operations, act) for act, each in needed])
            except StoreError:
                self.index.doubt_registration()
                raise
        waiting = {str(act.ref): each for act, each in found if isinstance(each, str)}
        self._doubted -= acted - waiting.keys()
        return waiting

    def _place(self, act: Act) -> int:
        """Nodes before what runs on them, and in reverse where things go."""
        order = self.index.parts[act.ref.kind].order
        return -order if act.verb in ("remove", "release") else order

    async def _mutation(self, act: Act, client: ConsulClient) -> Mutation:
        part, entry = self.index.parts[act.ref.kind], act.entry
        wish = self._wish(entry) if entry is not None and entry.document is not None else None
        call = replace(self.call(entry, act.why), client=client)
        return await changes.mutation(part, call, act, wish)
