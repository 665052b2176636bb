"""Carries out plans of pods in fenced, audited transactions; all kinds that place pods use it.

The change of one pod is one group: its ``pods`` key, its intent and its reservation change together or not at
all. The two changes of a move share a group, and so does the worker's note. Every transaction carries the
claim's fence and the version of the record that was planned from (R12), and exactly one audit record with its
difference. Own commits are applied to the caches from the response (R23a). A rejected or unanswered change is
read again before the next plan. The process's ledger holds reservations until their outcome is known, so the
workers of one farm never collide over a node (R17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.failsafe.guard import FailsafeGuard, RemovalBudget
from farmd.farm.writer import Write, Writer
from farmd.pods.changes import (
    NodeChanges,
    PodChange,
    audit_bytes,
    came,
    encoder,
    group,
    relabelled,
    rewritten,
    went,
)
from farmd.pods.state import PodState
from scheduler.errors import ReservationContended
from scheduler.ledger import Hold, Ledger
from store import codec, operations
from store.audit import Audit, AuditLogStore
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import RecordInvalid
from store.families import FAMILIES
from store.keys import Keys
from store.operations import Operation
from store.pods import Place
from store.ports import Clock
from store.reality import Intent
from store.transaction import Group, Result

REREAD_ONE_BY_ONE = 40
# To read a key costs Consul and a farm as much as so many more entries of a list.
ENTRIES_A_READ = 20


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a plan: committed changes, and whether to read and plan again."""

    committed: int
    replan: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The owner of the changes as the audit names it, its record as it was read, and the reason."""

    kind: str
    id: str
    name: str
    actor: str
    record: Stored[Any]
    why: str = ""


class Placement:
    """Executes changes of pods under a claim."""

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        caches: Caches,
        audit: AuditLogStore,
        clock: Clock,
        ledger: Ledger | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._caches = caches
        self._audit = audit
        self._clock = clock
        self._ledger = ledger or Ledger()
        self._settled = settled

    def verdicts(self, leaving: Iterable[Place], *pods: Mapping[Place, PodState]) -> list[Operation]:
        """Checks that the lost nodes among those of ``leaving``, whose ``pods`` are given up, are still lost
        at the commit (R21).
        """
        places = set(leaving)
        states = [(place[0], each[place]) for each in pods for place in places & each.keys()]
        nodes = {node for node, state in states if state.lost is not None}
        keys = [self._keys.work("nodes", node) for node in sorted(nodes)]
        known = [(key, self._caches.work.get(key)) for key in keys]
        return [operations.check_index(key, stored.index if stored else 0) for key, stored in known]

    async def execute(
        self,
        units: Iterable[NodeChanges],
        subject: Subject,
        writer: Writer,
        *,
        standing: int,
        guards: Sequence[Operation] = (),
    ) -> Report:
        """Commit changes in full, pipelined transactions. ``standing`` is the number of the owner's pods
        before.

        ``guards`` are further checks that every transaction carries. Units whose reservations another worker
        of this process is changing are left out; the report then asks for a new plan.

        Raises:
            ClaimLost: the fence failed: the lock is no longer this claim's.
            SessionSuspended: the session may have expired; what was sent before counts.
            AccessDenied: Consul's ACL refuses the write.
        """
        committed: list[Result[NodeChanges]] = []
        holds: dict[int, Hold] = {}
        contended: list[str] = []

        def done(result: Result[NodeChanges]) -> None:
            committed.append(result)
            for g in result.batch.groups:
                if (hold := holds.get(id(g.subject))) is not None:
                    hold.committed(result.index)

        with ExitStack() as stack:
            encode, held = encoder(), self._held(units, stack, holds, contended)
            try:
                results = await writer.submit(
                    (group(each, subject.id, self._keys, encode) for each in held),
                    [operations.check_index(subject.record.key, subject.record.index), *guards],
                    clock=self._clock,
                    trailer=self._trailer(subject, standing),
                    trailer_bytes=audit_bytes,
                    committed=done,
                )
            finally:
                # This runs after the last answer, so that it delays no transaction, and also after an
                # interruption.
                self._apply(committed, subject.id)
            report = await self._settle(results, subject)
            writer.unsettled = False
        if holds:
            self._settled()
        if contended and not report.replan:
            return Report(report.committed, True, contended[0])
        return report

    def _held(
        self, units: Iterable[NodeChanges], stack: ExitStack, holds: dict[int, Hold], contended: list[str]
    ) -> Iterator[NodeChanges]:
        """The units whose reservations this worker holds until the stack closes (R17)."""
        for unit in units:
            if unit.reservations:
                try:
                    holds[id(unit)] = stack.enter_context(self._ledger.hold(unit.reservations))
                except ReservationContended as error:
                    contended.append(error.message)
                    continue
            yield unit

    def _trailer(
        self, subject: Subject, standing: int
    ) -> Callable[[list[Group[NodeChanges]]], list[Operation]]:
        count = standing

        def record(groups: list[Group[NodeChanges]]) -> list[Operation]:
            nonlocal count
            changes = [change for g in groups for change in g.subject.changes]
            note = next((g.subject.note for g in groups if g.subject.note is not None), None)
            before = count
            placed, removed = came(changes), went(changes)
            count += len(placed) - len(removed)
            actions = sorted({change.action for change in changes})
            plain = f"pods.{actions[0]}" if len(actions) == 1 else "pods.retarget"
            audit = Audit(
                at=self._audit.now(),
                actor=subject.actor,
                action=note.action if note is not None else plain,
                kind=subject.kind,
                id=subject.id,
                name=subject.name,
                reason=(note.reason if note is not None else "") or subject.why,
                before={"pods": before},
                after={"pods": count, **(note.fields if note is not None else {})},
                placed=placed,
                removed=removed,
                relabelled=relabelled(changes),
                manifest=next((c.intent.manifest for c in changes if c.intent is not None), ""),
            )
            return [self._audit.operation(audit)]

        return record

    def _apply(self, results: Sequence[Result[NodeChanges]], owner: str) -> None:
        """Apply own commits to the caches from the response, not through the watch (R23a)."""
        pods, intents, reserved, writes = set[str](), set[str](), set[str](), list[Write]()
        for result in results:
            index = result.indexes()
            for subject in (g.subject for g in result.batch.groups):
                for change in subject.changes:
                    pods |= self._apply_pod(change, change.owner or owner, index)
                    intents.add(self._apply_intent(change, change.owner or owner, index))
                for reservation in subject.reservations:
                    key = self._keys.reserved(reservation.node)
                    self._caches.reserved.wrote(key, reservation.record, index[key], reservation.value())
                    reserved.add(key)
                if subject.note is not None:
                    for write in subject.note.writes:
                        write.apply(index[write.key])
                        writes.append(write)
        self._caches.pods.notify(pods)
        self._caches.intent.notify(intents)
        self._caches.reserved.notify(reserved)
        for write in writes:
            if write.tree is not None:
                write.tree.notify({write.key})

    def _apply_pod(self, change: PodChange, owner: str, index: Mapping[str, int]) -> set[str]:
        key, changed = self._keys.pod(owner, change.node, change.instance), set[str]()
        if change.action == "take":
            former = self._keys.pod(change.previous, change.node, change.instance)
            self._caches.pods.removed(former, index[key])
            changed.add(former)
        if change.pod is None:
            self._caches.pods.removed(key, index[key])
        elif change.action not in ("repair", "release"):
            raw = rewritten(change.pod, change.standing)
            self._caches.pods.wrote(key, change.pod, index[key], raw)
        return {key, *changed}

    def _apply_intent(self, change: PodChange, owner: str, index: Mapping[str, int]) -> str:
        key = self._keys.intent(change.node, change.instance)
        if change.action == "end":
            return key
        if change.intent is not None:
            raw = rewritten(change.intent, change.standing_intent)
            self._caches.intent.wrote(key, change.intent, index[key], raw)
        elif change.standing_intent is not None and change.standing_intent.record.owner == owner:
            self._caches.intent.removed(key, index[key])
        return key

    async def _settle(self, results: Iterable[Result[NodeChanges]], subject: Subject) -> Report:
        """Read again what was rejected or not answered, before the next plan (R12)."""
        committed, doubtful, reason = 0, list[NodeChanges](), ""
        for result in results:
            if result.committed:
                committed += sum(len(g.subject.changes) for g in result.batch.groups)
                continue
            failed = result.batch.groups if result.rejected is None else result.batch.failed(result.rejected)
            doubtful += [g.subject for g in failed]
            reason = str(result.rejected or result.error)
        if doubtful or reason:
            await self._caches.tree(FAMILIES[subject.kind]).barrier([subject.record.key])
            await self._reread(doubtful, subject.id)
        return Report(committed, bool(reason), reason)

    async def _reread(self, doubtful: list[NodeChanges], owner: str) -> None:
        changes = [change for each in doubtful for change in each.changes]
        if any(each.note for each in doubtful):
            await self._caches.work.barrier()
            await self._caches.reserved.barrier()
        if not changes:
            return
        owners = {each for c in changes for each in (c.owner or owner, c.previous) if each}
        await self._caches.pods.barrier([self._keys.pods(each) for each in owners])
        if any(each.reservations for each in doubtful):
            await self._caches.reserved.barrier()
        await self.reread_intents([(change.node, change.instance) for change in changes])

    async def reread_intents(self, places: Collection[Place]) -> None:
        """Read the intents at these places again now, although the cache reads the tree of intents rarely.

        A tree that is in doubt would refuse to be read as a whole.
        """
        tree, reads = self._caches.intent, len(places)
        small = len(tree.entries) <= ENTRIES_A_READ * (reads - 1) and tree.doubt is None
        if small or reads > REREAD_ONE_BY_ONE:
            await tree.barrier()
        else:
            await asyncio.gather(*(self.reread_intent(*place) for place in places))

    async def reread_intent(self, node: str, instance: str) -> None:
        """Read the intent at a place now, because the tree of intents is read seldom."""
        key = self._keys.intent(node, instance)
        index, entry = await self._client.get(key)
        if entry is None:
            self._caches.intent.removed(key, index)
        else:
            try:
                record = codec.decode(Intent, entry.value, key)
            except RecordInvalid:
                await self._caches.intent.barrier()  # the copy keeps apart what does not decode
                return
            self._caches.intent.wrote(key, record, entry.modify_index, entry.value)
        self._caches.intent.notify({key})


# What the workers of a kind spend of its removal budget, and get back for removals that were not made
# (R19).
#
# The budget is spent before a plan is carried out, so that the workers of a farm cannot overdraw it
# together. Removals of a rejected transaction are returned; otherwise farms that collide would freeze each
# other.


class Spending:
    """The owners' accounts with the budget; ``settle`` is called once the outcome of a plan was read."""

    def __init__(self, fleet: FleetIndex, kind: str, budget: RemovalBudget, guard: FailsafeGuard) -> None:
        self._fleet = fleet
        self._kind = kind
        self._budget = budget
        self._guard = guard
        self._spent: dict[str, list[Place]] = {}

    def allows(self, owner: str, places: Sequence[Place], evidence: str) -> bool:
        """Whether the farm may remove pods without a person's request; if not, ``evidence`` freezes the
        kind.

        A person's acknowledgement of exactly this evidence allows the removals (R18).
        """
        nodes = [node for node, _ in places]
        if not nodes or self._budget.allows(nodes, self._fleet.pods_here(self._kind)):
            if places:
                self._spent.setdefault(owner, []).extend(places)
            return True
        self._guard.report(evidence)
        self._guard.look()
        return self._guard.frozen() is None

    def restarts(self, places: Sequence[Place]) -> bool:
        """Whether the farm may restart pods in place without a person's request: they count like removals.

        The budget is not given back, because those pods stay. A refusal freezes nothing; the restarts only
            wait.
        """
        return self._budget.allows([node for node, _ in places], self._fleet.pods_here(self._kind))

    def settle(self, owner: str) -> None:
        """Return the budget of an owner's pods that still exist."""
        standing = self._fleet.pods(owner)
        spent = self._spent.pop(owner, ())
        self._budget.give_back(node for node, instance in spent if (node, instance) in standing)

    def forget(self, owner: str) -> None:
        """Forget what an owner spent; its worker ended."""
        self._spent.pop(owner, None)
