"""The base of kinds whose items manage owners of pods (R14): they follow the owners, and read their pods."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from farmd.failsafe.guard import Freezes
from farmd.farm.writer import Write
from farmd.pods.changes import NodeChanges, arriving
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.model import Outcome
from farmd.work.named import EndingPlan, NamedKind, NamedWorker
from farmd.work.worker import Fields
from store.cache import PrefixCache
from store.entry import Stored
from store.errors import RecordInvalid, TransactionRejected
from store.locks import Claim
from store.operations import Operation
from store.ports import Recorder
from store.sessions import Session

# How many items of a kind this farm works on, by where they are, as a metric.


class Phases:
    """The phase of each item that a worker of this farm saw last: the ``label`` of a ``metric``, which has
    ``labels`` besides.
    """

    def __init__(
        self, recorder: Recorder, metric: str, label: str, phases: Sequence[str], **labels: str
    ) -> None:
        self._recorder = recorder
        self._metric, self._label, self._phases, self._labels = metric, label, phases, labels
        self._now: dict[str, str] = {}
        self._count()

    def see(self, item: str, phase: str) -> None:
        """An item is in this phase; ``""``: no worker of this farm works on it any more."""
        if phase == self._now.get(item, ""):
            return
        if phase:
            self._now[item] = phase
        else:
            self._now.pop(item, None)
        self._count()

    def _count(self) -> None:
        counts = Counter(self._now.values())
        for each in self._phases:
            self._recorder.set(self._metric, counts[each], **self._labels, **{self._label: each})


S = TypeVar("S")
P = TypeVar("P", bound=EndingPlan)

# Changes of pods that go on in a freeze (R18).
COMES = frozenset({"place", "repair"})


class ManagingKind(NamedKind):
    """A kind that manages owners of pods, which ``trees`` hold; ``phases`` counts where its items are.

    A change of an owner's record wakes the workers that follow the owner.
    """

    def __init__(self, context: Context, trees: Sequence[PrefixCache[Any]], phases: Phases) -> None:
        super().__init__(context)
        self.phases = phases
        for tree in trees:
            tree.subscribe(self._owners_changed)

    def _owners_changed(self, changed: set[str]) -> None:
        self.context.fleet.wake(map(self.context.keys.last_part, changed))

    @abstractmethod
    def pod_owners(self, record: Any) -> Sequence[str]:
        """The ids of the owners of an item's pods."""

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records and their states, the pods that they manage, and what plans rest on (R15)."""
        await super().barrier(items)
        await self.context.read_nodes()
        await self.read_managed(items)

    async def read_managed(self, items: Sequence[str]) -> None:
        """Read the owners that items manage, as far as plans take them from copies, and their pods (R15)."""
        ids = self._owners_of(items)
        await self.read_owners(ids)
        await self.context.caches.pods.barrier(list(map(self.context.keys.pods, ids)))

    async def read_owners(self, ids: Sequence[str]) -> None:
        """Read the records of these owners, where plans take them from copies."""

    def _owners_of(self, items: Sequence[str]) -> list[str]:
        found = [self.tree.get(self.context.keys.record(self.name, item)) for item in items]
        records = [stored.record for stored in found if stored is not None]
        return [ident for each in records for ident in self.pod_owners(each)]


class ManagingWorker(NamedWorker[S, P]):
    """Keeps one item that manages owners of pods; ``followed`` are their ids."""

    __slots__ = ("_over", "_told", "followed")

    kind: ManagingKind

    def __init__(self, kind: ManagingKind, claim: Claim, session: Session, wake: Wake) -> None:
        super().__init__(kind, claim, session, wake)
        self.followed: Sequence[str] = ()
        self._over: Callable[[], None] | None = None
        self._told = False

    def attach(self) -> None:
        """Hear of what makes room, and of its own state."""
        self.context.fleet.attach(self.kind.name, self.claim.item, self.wake)

    def detach(self) -> None:
        """Hear of nothing any more."""
        self.context.fleet.detach(self.claim.item)
        for owner in self.followed:
            self.context.fleet.unfollow(owner, self.claim.item)
        self.kind.phases.see(self.claim.item, "")

    async def reread(self) -> None:
        """Read what its writes change, after one whose outcome is unknown (R12)."""
        await super().reread()
        await self.context.read_nodes()
        await self.kind.read_managed([self.claim.item])
        await self.context.caches.intent.barrier()

    def follow(self, record: Any) -> None:
        """Hear of the owners that the record names now, and of no others."""
        owners, item = self.kind.pod_owners(record), self.claim.item
        if owners == self.followed:
            return
        for owner in owners:
            self.context.fleet.follow(owner, item, self.wake)
        for owner in set(self.followed).difference(owners):
            self.context.fleet.unfollow(owner, item)
        self.followed = owners

    async def turn(
        self,
        record: Any,
        verb: str,
        reason: str,
        *writes: Write | Operation,
        before: Fields | None = None,
        after: Fields | None = None,
    ) -> Outcome:
        """Change more than pods, in one transaction: the record is as it was read, ``writes``, the audit."""
        action = f"{self.kind.noun.words.noun}.{verb}"
        audit = self.audit(action, reason, name=record.name, before=before, after=after)
        await self.writer.commit(*self.stands(), *writes, audit)
        return Outcome("after", 0.0)

    async def last_turn(
        self,
        record: Any,
        verb: str,
        reason: str,
        *writes: Write | Operation,
        over: Callable[[], None],
        before: Fields | None = None,
        after: Fields | None = None,
    ) -> None:
        """A turn that deletes the record; ``over`` is called once if it was committed.

        The farm may see the deletion, and cancel this worker, before the answer of the transaction is here.
        """
        self._over = over
        try:
            await self.turn(record, verb, reason, *writes, before=before, after=after)
        except TransactionRejected:
            self._over = None
            raise
        self._finish()

    def _finish(self) -> None:
        over, self._over = self._over, None
        # It may try to end the item again before its copy knows that the record is gone.
        if over is not None and not self._told:
            self._told = True
            over()

    async def gone(self) -> Outcome:
        """The record was deleted, perhaps by a transaction of this worker that it has no answer of."""
        self._finish()
        return await super().gone()

    async def move(
        self,
        stored: Stored[Any],
        why: str,
        units: Sequence[NodeChanges],
        freezes: Freezes,
        *,
        standing: int,
        checks: Sequence[Operation],
    ) -> Outcome:
        """Change pods of its owners, in transactions that carry ``checks`` besides the record.

        Nothing leaves for which there is evidence at this moment: it is planned again, and held (R18, R19).
        """
        leaves = any(change.action not in COMES for unit in units for change in unit.changes)
        if leaves and (evidence := freezes.found()) is not None:
            return Outcome("frozen", self.context.rng.uniform(1.0, 2.0), evidence)
        found = await self.carry_out(
            stored, why, units, standing=standing, checks=checks, arriving=arriving(units)
        )
        if not found.replan:
            return Outcome("after", 0.0)
        await self.kind.read_owners(self.followed)  # their records may be what was compared in vain
        return Outcome("rejected", None, found.reason)

    def illegible(self) -> tuple[RecordInvalid, str] | None:
        """The error of its state or of a pod that does not decode, and which of them it is."""
        context = self.context
        state = context.caches.work.broken.get(context.keys.work(self.kind.name, self.claim.item))
        if state is not None:
            return state, "its state"
        broken = next(filter(None, map(context.fleet.broken_pod, self.followed)), None)
        return (broken, "a pod of it") if broken is not None else None


class Steady:
    """The owners of one manager that are taken and at rest, and whose pods were read after that (R14, R15).

    It is kept for one claim: after a takeover the next worker reads again.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._steady: set[str] = set()

    async def waits(self, taken: Mapping[str, str]) -> dict[str, str]:
        """What the own workers of taken owners have to end first, as text by the owner's id; nobody plans the
        pods of these. ``taken`` are the families of all owners that are taken now, by id.
        """
        self._steady &= taken.keys()  # what was lent since has other pods by now
        fresh = [owner for owner in taken if owner not in self._steady]
        if not fresh:
            return {}
        caches, keys, found = self._context.caches, self._context.keys, dict[str, str]()
        await caches.work.barrier()
        for owner in fresh:
            work = caches.work.get(keys.work(taken[owner], owner))
            if work is not None and (move := work.record.transfer) is not None:
                found[owner] = f"waiting until a move of {'/'.join(move.old)} is ended"
        if rest := [owner for owner in fresh if owner not in found]:
            await self._context.read_pods(rest)
            self._steady.update(rest)
        return found
