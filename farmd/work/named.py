"""The base of all kinds of named records: read a record, report on it, end it.

The records of a kind lie in one cached tree. A person only marks a record (``deleting``); the farm that
claims it takes everything down. What must never break: the record is deleted last, under the claim's fence,
at the version that was planned from, while no one holds its mutation lock (R12, R13).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from msgspec import Struct

from farmd import kinds
from farmd.commands.mutation import Call, audited
from farmd.commands.noun import Noun
from farmd.farm.kind import Items, RecordItems
from farmd.farm.writer import Write
from farmd.pods.changes import NodeChanges
from farmd.pods.placement import Report, Subject
from farmd.runtime.wake import Wake
from farmd.work.kind import Kind
from farmd.work.model import Blocked, Outcome, Plan
from farmd.work.worker import Worker
from store.cache import PrefixCache
from store.entry import Stored
from store.errors import Locked, RecordInvalid
from store.families import FAMILIES, Family
from store.locks import Claim
from store.operations import Operation
from store.pods import Place
from store.sessions import Session
from store.status import ItemStatus

# The release of a mutation lock wakes no watch.
LOOK_AGAIN_SECONDS = 5.0
DELETED = "it was marked for deletion, and nothing of it remains"


class EndingPlan(Plan, Protocol):
    """A plan that may end the record."""

    @property
    def ends(self) -> bool:
        """Whether everything of a deleted record is taken down, so that the record is deleted now."""


S = TypeVar("S")
P = TypeVar("P", bound=EndingPlan)


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A plan of one transaction. ``action`` is its name in the audit; empty: it writes nothing."""

    action: str = ""
    ends: bool = False
    blocked: Blocked | None = None
    after: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not (self.action or self.ends)


class NamedKind(Kind):
    """A kind whose items are named records.

    ``works`` is the class of their workers. The keys of the families ``beside`` end in an item's id: their
    changes wake its worker, and it reads them before it plans.
    """

    works: ClassVar[type[NamedWorker[Any, Any]]]
    beside: ClassVar[tuple[Family[Any], ...]] = ()

    @property
    def noun(self) -> Noun[Any, Any]:
        """The commands on its records, as its declaration says."""
        return kinds.asked(self.name)

    @property
    def tree(self) -> PrefixCache[Any]:
        return self.context.caches.tree(FAMILIES[self.name])

    def records(self) -> Items:
        """Every record, also those that do not decode."""
        beside = [self.context.caches.tree(family) for family in self.beside]
        return RecordItems(self.tree, self.context.keys, beside)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records, those beside them, the freezes, and the items' last statuses (R15)."""
        for item_tree in (self.tree, *map(self.context.caches.tree, self.beside)):
            await item_tree.barrier([self.context.keys.record(item_tree.family, item) for item in items])
        await self.context.caches.failsafe.barrier()
        await self.recollection.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> NamedWorker[Any, Any]:
        """A worker for one record."""
        return self.works(self, claim, session, wake)


class NamedWorker(Worker[S, P]):
    """Keeps one named record."""

    __slots__ = ()

    kind: NamedKind

    # -- what a kind says ------------------------------------------------------------------------
    @abstractmethod
    async def look(self, stored: Stored[Any]) -> S | Outcome:
        """The snapshot: the record and everything that its plan rests on."""

    def changes(self, snapshot: S, plan: P) -> Sequence[Write | Operation]:
        """The writes of a plan, in one transaction with its audit record.

        A kind whose plans take more than one transaction overrides ``act`` instead, and has none.
        """
        raise NotImplementedError(f"{type(self).__name__} writes nothing")

    # -- the frame's hooks -----------------------------------------------------------------------
    def called(self) -> str:
        """The record's name."""
        stored = self.kind.tree.get(self.key)
        # An app's record has no name of its own: its item is called by it.
        return super().called() if stored is None else str(getattr(stored.record, "name", self.claim.item))

    async def reread(self) -> None:
        """Read the input of plans again, after a write whose outcome is unknown (R12)."""
        for tree in (self.kind.tree, *map(self.context.caches.tree, self.kind.beside)):
            await tree.barrier([self.context.keys.record(tree.family, self.claim.item)])

    async def read(self) -> S | Outcome:
        """The snapshot. A record that does not decode is reported, and nothing of the item is touched
        (R10).
        """
        stored = self.stored(self.kind.tree)
        if isinstance(stored, RecordInvalid):
            return await self.unreadable(stored, "the record")
        if stored is None:
            return await self.gone()
        if (forgotten := self.forgotten(stored)) is not None:
            return await self.unreadable(forgotten, "its state")
        await self.freshen(stored.record)
        if (broken := self.broken()) is not None:
            return await self.unreadable(broken, "the records beside it")
        return await self.look(stored)

    def forgotten(self, stored: Stored[Any]) -> RecordInvalid | None:
        """The error of an item that began, as its status says, and whose state is missing or empty.

        It would begin again. What a person says of its end needs no state.
        """
        known, keys = self.status.known, self.context.keys
        begun = known is not None and known.underway and known.record >= stored.create_index
        if not begun or any(getattr(stored.record, each, "") for each in ("deleting", "wish")):
            return None
        work = self.context.caches.work.get(key := keys.work(self.kind.name, self.claim.item))
        if key in self.context.caches.work.broken or (work is not None and work.record.keeps(self.kind.name)):
            return None
        found = "no record" if work is None else "an empty one"
        return RecordInvalid(f"{key}: found {found}, expected how far it is; farmctl doctor", key=key)

    async def freshen(self, record: Any) -> None:
        """Called before each snapshot, to read again what others have changed according to the record."""

    def broken(self) -> RecordInvalid | None:
        """The error of a record beside this one that does not decode."""
        trees = map(self.context.caches.tree, self.kind.beside)
        found = (tree.broken.get(self.context.keys.record(tree.family, self.claim.item)) for tree in trees)
        return next((error for error in found if error is not None), None)

    def describe(self, snapshot: S, plan: P) -> ItemStatus | None:
        """The status: blocked or frozen with the reason, disabled, or converged."""
        if (blocked := plan.blocked) is not None:
            return self.kind.status(state="frozen" if blocked.frozen else "blocked", reason=blocked.text)
        stored = self.kind.tree.get(self.key)
        disabled = stored is not None and getattr(stored.record, "disabled", False)
        return self.kind.status(state="disabled" if disabled else "converged")

    async def act(self, snapshot: S, plan: P) -> Outcome:
        """Delete the record, or write what the plan changes; the next cycle confirms it."""
        if plan.ends:
            return await self.end()
        await self.writer.commit(*self.stands(), *self.changes(snapshot, plan))
        return Outcome("after", 0.0)

    # -- what every kind of named records does alike ---------------------------------------------
    def beside(self, family: Family[Any]) -> Stored[Any] | None:
        """The item's record in a family beside it."""
        return self.context.caches.tree(family).get(self.context.keys.record(family.name, self.claim.item))

    def replaced(self, family: Family[Any], before: Stored[Any] | None, after: Struct | None) -> Write:
        """The write of the item's record in a family beside it; ``after`` None deletes the record."""
        key = self.context.keys.record(family.name, self.claim.item)
        return Write.over(key, after, before, self.context.caches.tree(family))

    def frozen(self) -> str | None:
        """The evidence that freezes removals; None: there is none, or a person changed the record since
        (R18).
        """
        guard = self.kind.guard
        return None if guard.commanded(self.index) else guard.frozen()

    def call(self, reason: str) -> Call:
        """This farm as the caller of a command."""
        context = self.context
        return Call(context.client, context.keys, context.clock, context.ids, context.actor, reason)

    async def carry_out(
        self,
        stored: Stored[Any],
        why: str,
        units: Iterable[NodeChanges],
        *,
        standing: int,
        checks: Sequence[Operation] = (),
        arriving: Iterable[Place] = (),
    ) -> Report:
        """Change pods in transactions that also compare the record, which was ``stored``, and ``checks``.

        ``standing`` pods were there before. Those that come to ``arriving`` count on their nodes meanwhile.
        """
        context, item = self.context, self.claim.item
        subject = Subject(self.kind.name, item, stored.record.name, context.actor, stored, why)
        with context.fleet.expecting(item, arriving):
            return await context.placement.execute(
                units, subject, self.writer, standing=standing, guards=checks
            )

    async def end(self, why: str = DELETED, besides: Sequence[Operation] = ()) -> Outcome:
        """Delete the record, with the keys ``besides`` it; ``why`` is for the audit.

        Raises:
            ClaimLost: the lock is no longer this claim's.
            StoreError: nothing was deleted, or that is unknown; it is planned again after a pause.
        """
        noun, stored = self.kind.noun, self.kind.tree.get(self.key)
        if stored is None or stored.index != self.index:
            return Outcome("after", 0.0, "the record changed")
        call = self.call(why)
        try:
            held = await noun.guard(call, stored.record)
            removal = await noun.removal(call, stored, held)
            await self.writer.commit(*removal.operations, *besides, audited(call, removal.change))
        except Locked as error:
            await self.block(str(error))
            return Outcome("blocked", LOOK_AGAIN_SECONDS, error.code)
        return Outcome("done")
