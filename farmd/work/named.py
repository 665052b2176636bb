"""What all kinds of records that people name do alike: read a record, tell of it, end it.

The records of a kind lie in one cached tree. A person only marks a record (``deleting``); the farm that
claims it takes down what is there. What must never break: a record goes last, under the claim's fence, at the
version that was planned from, while nobody holds its mutation lock (R12, R13).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from msgspec import Struct

from farmd.commands.mutation import Call, audited
from farmd.commands.noun import Noun
from farmd.farm.items import Items, RecordItems
from farmd.farm.writer import Write
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
from store.sessions import Session
from store.status import ItemStatus

# A mutation lock that is released wakes nobody.
LOOK_AGAIN_SECONDS = 5.0
DELETED = "it was marked for deletion, and nothing of it is left"


class EndingPlan(Plan, Protocol):
    """A plan that may end the record."""

    @property
    def ends(self) -> bool:
        """Whether nothing is left of what is being deleted, so that the record goes now."""


S = TypeVar("S")
P = TypeVar("P", bound=EndingPlan)


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A plan of one transaction; ``action`` is what the audit calls it, empty: nothing is written."""

    action: str = ""
    ends: bool = False
    blocked: Blocked | None = None
    after: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but a status."""
        return not (self.action or self.ends)


class NamedKind(Kind):
    """A kind whose items are named records.

    ``noun`` is what people may ask of them, ``works`` the class of their workers. The keys of the families
    ``beside`` end in the id of an item: their changes wake its worker, and they are read before it plans.
    """

    noun: ClassVar[Noun[Any, Any]]
    works: ClassVar[type[NamedWorker[Any, Any]]]
    beside: ClassVar[tuple[Family[Any], ...]] = ()

    @property
    def tree(self) -> PrefixCache[Any]:
        """The records."""
        return self.context.caches.tree(FAMILIES[self.name])

    def records(self) -> Items:
        """Every record, those that do not decode too."""
        beside = [self.context.caches.tree(family) for family in self.beside]
        return RecordItems(self.tree, self.context.keys, beside)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records, what lies beside them, the freezes, and what was last told of them (R15)."""
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
        """The record, and all that its plan rests on."""

    def changes(self, snapshot: S, plan: P) -> Sequence[Write | Operation]:
        """What a plan writes in one transaction, with its audit record."""
        raise NotImplementedError(f"{type(self).__name__} writes nothing")

    # -- the frame's hooks -----------------------------------------------------------------------
    async def reread(self) -> None:
        """After a write whose outcome is not known: read anew what plans rest on (R12)."""
        for tree in (self.kind.tree, *map(self.context.caches.tree, self.kind.beside)):
            await tree.barrier([self.context.keys.record(tree.family, self.claim.item)])

    async def read(self) -> S | Outcome:
        """The record; one that does not decode is told, and nothing of it is touched (R10)."""
        stored = self.stored(self.kind.tree)
        if isinstance(stored, RecordInvalid):
            return await self.unreadable(stored, "the record")
        if stored is None:
            return await self.gone()
        if (broken := self.broken()) is not None:
            return await self.unreadable(broken, "what lies beside the record")
        return await self.look(stored)

    def broken(self) -> RecordInvalid | None:
        """What lies beside the record and does not decode."""
        trees = map(self.context.caches.tree, self.kind.beside)
        found = (tree.broken.get(self.context.keys.record(tree.family, self.claim.item)) for tree in trees)
        return next((error for error in found if error is not None), None)

    def describe(self, snapshot: S, plan: P) -> ItemStatus | None:
        """Blocked or frozen with its reason, disabled, or converged."""
        if (blocked := plan.blocked) is not None:
            return self.kind.status(state="frozen" if blocked.frozen else "blocked", reason=blocked.text)
        stored = self.kind.tree.get(self.key)
        disabled = stored is not None and getattr(stored.record, "disabled", False)
        return self.kind.status(state="disabled" if disabled else "converged")

    async def act(self, snapshot: S, plan: P) -> Outcome:
        """End the record, or write what the plan changes; the next cycle confirms it."""
        if plan.ends:
            return await self.end()
        await self.writer.commit(*self.stands(), *self.changes(snapshot, plan))
        return Outcome("after", 0.0)

    # -- what every kind of named records does alike ---------------------------------------------
    def beside(self, family: Family[Any]) -> Stored[Any] | None:
        """The item's record in a family beside it."""
        return self.context.caches.tree(family).get(self.context.keys.record(family.name, self.claim.item))

    def replaced(self, family: Family[Any], before: Stored[Any] | None, after: Struct | None) -> Write:
        """The write of the item's record in a family beside it; ``after`` None deletes it."""
        key, index = self.context.keys.record(family.name, self.claim.item), before.index if before else 0
        raw = before.raw if before is not None else b""
        return Write(key, after, index, raw, tree=self.context.caches.tree(family))

    def frozen(self) -> str | None:
        """Why removals stand still; None where they do not, or a person changed the record since (R18)."""
        guard = self.kind.guard
        return None if guard.commanded(self.index) else guard.frozen()

    def call(self, reason: str) -> Call:
        """This farm, as somebody who asks for a change."""
        context = self.context
        return Call(context.client, context.keys, context.clock, context.ids, context.actor, reason)

    async def end(self) -> Outcome:
        """Delete the record.

        Raises:
            ClaimLost: the lock is no longer this claim's.
            StoreError: nothing was deleted, or nobody knows; it is planned again after a pause.
        """
        noun, stored = self.kind.noun, self.kind.tree.get(self.key)
        if stored is None or stored.index != self.index:
            return Outcome("after", 0.0, "the record changed")
        call = self.call(DELETED)
        try:
            held = await noun.guard(call, stored.record)
            removal = await noun.removal(call, stored, held)
            await self.writer.commit(*removal.operations, audited(call, removal.change))
        except Locked as error:
            await self.block(str(error))
            return Outcome("blocked", LOOK_AGAIN_SECONDS, error.code)
        return Outcome("done")
