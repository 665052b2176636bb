"""Carries a plan of an app into the store: one revision, what former ones left, each transaction fenced."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from msgspec.structs import replace

from farmd.apps import report
from farmd.apps.changes import ONE_TRANSACTION, over_one_transaction
from farmd.apps.facts import Act, ApplicationRevision, Plan, Ref, Snapshot, revision_name
from farmd.apps.plan import falls_back, revisions
from farmd.apps.reader import Index
from farmd.apps.sweep import sweep
from farmd.farm.writer import Write
from farmd.work.worker import ClaimedItem, Fields
from store import codec, operations
from store.apps import KIND, AppStore, DispatchState, Entry
from store.entry import Stored
from store.errors import InputInvalid
from store.families import APPS, FAMILIES
from store.operations import Operation, Verb
from store.transaction import Group, Result
from store.work import Work

# Collects what former revisions of an app left behind (KubeVela ``GCHandler``).

Carry = Callable[[Sequence[Act]], Awaitable[Mapping[Ref, str]]]


class GarbageCollector(Protocol):
    """Takes away what ``old`` revisions have and the ``new`` one has not."""

    async def garbage_collect(self, old: Mapping[Ref, Entry], new: Sequence[Entry]) -> Mapping[Ref, str]:
        """Collect; the objects that could not be changed, with the reasons."""


class GCHandler:
    """Collects by the marks of the objects as they stand in ``shot``; ``carry`` does what is decided."""

    def __init__(self, shot: Snapshot, carry: Carry) -> None:
        self._shot, self._carry = shot, carry

    async def garbage_collect(self, old: Mapping[Ref, Entry], new: Sequence[Entry]) -> Mapping[Ref, str]:
        """Collect what bears the app's mark; what something changes now stays until that is over.

        Raises:
            StoreError: what was done is unknown.
        """
        shot = dataclasses.replace(self._shot, former=old, wanted=tuple(new))
        found = sweep(shot, back=falls_back(shot.app, shot.state))
        return await self._carry(found.acts) if found.acts else {}


# Carries out the changes of one revision (KubeVela ``AppManifestsDispatcher``).
#
# A revision is dispatched step by step while nothing is collected (``start_and_skip_gc``), and in the end
# what former revisions left is (``end_and_gc``, then a dispatch of nothing).

Revision = Mapping[Ref, Entry]


class AppManifestsDispatcher:
    """Dispatches changes of ``revision``, which wants ``entries``; ``carry`` does them."""

    def __init__(
        self,
        revision: ApplicationRevision,
        entries: Sequence[Entry],
        carry: Carry,
        collector: GarbageCollector,
    ) -> None:
        self.revision = revision
        self._entries, self._carry, self._collector = entries, carry, collector
        self._previous: Revision | None = None
        self._skip_gc = False

    def start_and_skip_gc(self, previous: Revision | None) -> Self:
        """From now on collect nothing of what was there before; None: as it is."""
        return self._since(previous, skip_gc=True)

    def end_and_gc(self, previous: Revision | None) -> Self:
        """From now on collect what was there before and is not wanted, after each dispatch; None: as it
        is."""
        return self._since(previous, skip_gc=False)

    def _since(self, previous: Revision | None, *, skip_gc: bool) -> Self:
        if previous is not None:
            self._previous, self._skip_gc = dict(previous), skip_gc
        return self

    async def dispatch(self, acts: Sequence[Act]) -> Mapping[Ref, str]:
        """Do these changes, then collect; the objects that must wait, with the reasons.

        Raises:
            StoreError: what was done is unknown; nothing was collected.
        """
        waiting = dict(await self._carry(acts)) if acts else {}
        if self._previous is None or self._skip_gc or waiting:
            return waiting
        return await self._collector.garbage_collect(self._previous, self._entries)


# Carries a plan of an app into the store: its note and the changes of records, each transaction fenced.
#
# What must never break: the note is written before the first change that rests on it, or with it; a repair
# is counted only once it is prepared or answered; an object is handed to an app only while that one wants
# it; and the farm's copies know of a change of records before the next plan (R23a).

WRITING = frozenset({Verb.SET, Verb.CAS, Verb.DELETE, Verb.DELETE_CAS})
# Trackers that one transaction deletes; the rest goes with the next revision.
TRIMMED = 20


@dataclass(frozen=True, slots=True)
class Made(Write):
    """An operation that a command prepared, as a write of which a copy learns."""

    operation: Operation = field(kw_only=True)

    def value(self) -> bytes:
        """The value as it was prepared."""
        return self.operation.value

    def operations(self) -> list[Operation]:
        """The operation as it was prepared."""
        return [self.operation]


class Writing:
    """Writes one plan of an app, made right after it was decided; ``work`` is its state as it was read."""

    __slots__ = ("_done", "_heirs", "_index", "_item", "_plan", "_shot", "_state", "_work")

    def __init__(
        self, item: ClaimedItem, index: Index, shot: Snapshot, plan: Plan, work: Stored[Work] | None
    ) -> None:
        self._item, self._index, self._shot, self._plan, self._work = item, index, shot, plan, work
        self._state = shot.state
        self._done = set[Ref]()
        self._heirs = {act.to: self._as_read(act.to) for act in plan.acts if act.to}

    def _as_read(self, app: str) -> tuple[Operation, ...]:
        """The checks that an app's record and its state are those that were read."""
        caches, keys = self._item.context.caches, self._item.context.keys
        read = (
            caches.tree(APPS).get(keys.record(KIND, app)),
            caches.work.get(keys.work(KIND, app)),
        )
        return tuple(operations.check_index(each.key, each.index) for each in read if each is not None)

    def done(self, refs: Iterable[Ref]) -> None:
        """These objects were changed, or the changes are prepared: what the state says of them holds."""
        self._done.update(refs)

    async def note(
        self,
        groups: Sequence[Group[Act]] = (),
        *beside: Operation,
        outside: Sequence[Act] = (),
        repeated: bool = False,
    ) -> None:
        """Write the app's next state, as far as it is not written, with the changes that share its
        transaction; and tell of changes ``outside`` of Consul, which may be made afterwards (R16), unless
        they are ``repeated``: of these an earlier record tells.
        """
        context, shot, note = self._item.context, self._shot, self._next()
        heirs = {check for act in outside for check in self._heirs.get(act.to, ())}
        if note == self._state:
            if outside:
                account = [] if repeated else [self._told(outside)]
                await self._item.writer.commit(*self._item.stands(), *heirs, *account)
            return
        record = replace(self._work.record if self._work is not None else Work(), dispatch=note)
        key = context.keys.work(KIND, shot.name)
        state = Write.over(key, record, self._work, context.caches.work)
        changes = [self._made(operation) for group in groups for operation in group.operations]
        acts = [*(group.subject for group in groups), *outside]
        told = self._told(acts, report.noted(self._state, note))
        trimmed = await self._trimmed() if note.reached != self._state.reached else []
        await self._item.writer.commit(*self._item.stands(), *beside, *heirs, state, *trimmed, *changes, told)
        self._state, self._work = note, context.caches.work.get(key)

    def _next(self) -> DispatchState:
        """The app's next state, which counts no repair that is not done."""
        note, before = self._plan.note, self._shot.state.repairs
        if note is None:
            return self._state
        pending = {str(act.ref) for act in self._plan.acts} - self._done
        undone = {name for name in note.repairs if name.partition(" ")[0] in pending}
        kept = {name: before.get(name, []) if name in undone else at for name, at in note.repairs.items()}
        return replace(note, repairs={name: at for name, at in kept.items() if at})

    async def _trimmed(self) -> list[Operation]:
        """The deletions of revisions beyond the history, save those that are needed still."""
        context, app, note = self._item.context, self._shot.app, self._plan.note
        assert note is not None
        kept = revisions(app, note) | {app.revision}
        numbers = await AppStore(context.client, context.keys).revisions(self._shot.name)
        old = [number for number in numbers[: -app.history] if number not in kept]
        return [operations.delete(context.keys.tracker(self._shot.name, number)) for number in old[:TRIMMED]]

    async def records(self, groups: Sequence[Group[Act]]) -> None:
        """Commit changes of records: with the note where all fit into one transaction, else after it.

        Raises:
            InputInvalid: an atomic app's changes do not fit into one transaction; nothing was written.
            TransactionRejected: a record changed since it was read. StoreError: an outcome is unknown.
        """
        context, item = self._item.context, self._item
        self.done(str(group.subject.ref) for group in groups)
        cluster, bare = _hoisted(context.keys.cluster, [self._witnessed(group) for group in groups])
        over = over_one_transaction([each for group in bare for each in group.operations])
        if self._shot.app.atomic and over:
            raise InputInvalid(f"atomic: found {over}, expected at most {ONE_TRANSACTION}")
        if not over and self._next() != self._state:
            await self.note(bare, *cluster)
        else:
            await self.note()
            await self._submit(bare, [*item.stands(), *cluster])
        item.writer.unsettled = False

    def _witnessed(self, group: Group[Act]) -> Group[Act]:
        """A change; of a hand-over with the checks that the other app still wants the object."""
        heir = self._heirs.get(group.subject.to, ())
        return Group((*group.operations, *heir), group.subject) if heir else group

    async def _submit(self, groups: Sequence[Group[Act]], checks: Sequence[Operation]) -> None:
        results = await self._item.writer.submit(
            groups,
            checks,
            clock=self._item.context.clock,
            trailer=lambda batch: [self._told([group.subject for group in batch])],
            trailer_bytes=lambda group: 64 + len(str(group.subject.ref)),
            committed=self._learn,
        )
        for result in results:
            if (trouble := result.rejected or result.error) is not None:
                raise trouble

    def _made(self, operation: Operation) -> Write | Operation:
        """An operation on a record that the farm has a copy of, as a write of which the copy learns."""
        keys = self._item.context.keys
        for tree in self._index.trees:
            if operation.verb not in WRITING or not operation.key.startswith(keys.tree(tree.family)):
                continue
            deletes = operation.verb in (Verb.DELETE, Verb.DELETE_CAS)
            kind = FAMILIES[tree.family].record
            assert kind is not None
            record = None if deletes else codec.decode(kind, operation.value, operation.key)
            return Made(operation.key, record, operation.index, tree=tree, operation=operation)
        return operation

    def _learn(self, result: Result[Act]) -> None:
        """Let the farm's copies know of changes that were committed."""
        indexes = result.indexes()
        made = [self._made(operation) for operation in result.batch.operations]
        known = [each for each in made if isinstance(each, Made)]
        for each in known:
            each.apply(indexes[each.key])
        for each in known:
            if each.tree is not None:
                each.tree.notify({each.key})

    def _told(self, acts: Sequence[Act], noted: Fields | None = None) -> Operation:
        """The audit record of some changes."""
        after = {**report.acts(acts), **(noted or {})}
        why = self._plan.why or revision_name(
            self._shot.name, (self._plan.note or self._shot.state).effective
        )
        return self._item.audit(self._plan.action, why, after=after)


def _hoisted(key: str, groups: Sequence[Group[Act]]) -> tuple[list[Operation], list[Group[Act]]]:
    """The check of the cluster, which all changes share, and the changes without it."""
    checks = {each for group in groups for each in group.operations if each.key == key}
    bare = [
        Group(tuple(each for each in group.operations if each.key != key), group.subject) for group in groups
    ]
    return list(checks), bare
