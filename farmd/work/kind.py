"""A kind of work, as the claim engine sees it: items to claim, what must be fresh, a worker for a claim.

One object a kind and farm; it holds what the workers of the kind share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar

from farmd.failsafe.guard import FailsafeGuard
from farmd.farm.items import Items
from farmd.farm.kind import Worker
from farmd.farm.model import Item
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.status import Recollection
from farmd.work.sweep import StatusSweep
from store.families import FAMILIES
from store.locks import Claim
from store.sessions import Session
from store.status import ItemStatus


class Kind(ABC):
    """One kind of work in one farm (``farmd.farm.kind.Kind``)."""

    name: ClassVar[str]

    def __init__(self, context: Context) -> None:
        self.context = context
        self.status: type[ItemStatus] = FAMILIES[self.name].status
        self._records = self.records()
        self._blocked: set[str] = set()
        self._held_back: dict[str, Wake] = {}
        if self.name in context.guards:
            self.guard.subscribe(self._freeze_changed)
        self.recollection = Recollection(context.client, context.keys, self.name, self.status)
        self._records.subscribe_gone(self.recollection.forget)
        self.sweep = StatusSweep(context.client, context.keys, self.name)

    @abstractmethod
    def records(self) -> Items:
        """The items, from cached trees."""

    @abstractmethod
    async def barrier(self, items: Sequence[str]) -> None:
        """Return once what workers of these items plan from was read after this call (R15)."""

    @abstractmethod
    def worker(self, claim: Claim, session: Session, wake: Wake) -> Worker:
        """A worker for a claim; built only after ``barrier``."""

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs beside the workers for as long as the farm does; a kind adds its own."""
        return (self.sweep.run(self.context.clock),)

    @property
    def guard(self) -> FailsafeGuard:
        """Tells whether removals of this kind stand still."""
        return self.context.guards[self.name]

    def items(self) -> Mapping[str, Item]:
        """All items; those whose records do not decode too, marked as broken."""
        return self._records.items()

    def trusted(self) -> bool:
        """Whether an item that is missing here is truly gone (R20)."""
        return self._records.trusted()

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the items that changed, and whether that can matter to claiming."""
        self._records.subscribe(changed)

    def block(self, item: str, blocked: bool) -> None:
        """Whether the item's worker is blocked, for the metric."""
        (self._blocked.add if blocked else self._blocked.discard)(item)

    def hold_back(self, item: str, wake: Wake | None) -> None:
        """Wake the item's worker when the freeze comes, goes or has other evidence; None: not any more."""
        if wake is None:
            self._held_back.pop(item, None)
        else:
            self._held_back[item] = wake

    def _freeze_changed(self) -> None:
        for wake in self._held_back.values():
            wake.set()

    def blocked(self) -> int:
        """How many items here are blocked."""
        return len(self._blocked)
