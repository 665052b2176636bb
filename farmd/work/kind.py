"""The base of all kinds of work: items to claim, what must be fresh before a plan, a worker for a claim.

A farm has one object for each kind; it holds what the kind's workers share.
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
from store.consul.client import ConsulClient
from store.families import FAMILIES
from store.keys import Keys
from store.locks import Claim, Locker
from store.ports import Recorder
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
        """Return once the input of these items' workers was read after this call (R15)."""

    @abstractmethod
    def worker(self, claim: Claim, session: Session, wake: Wake) -> Worker:
        """A worker for a claim; called only after ``barrier``."""

    def locker(self, client: ConsulClient, keys: Keys) -> Locker:
        """What takes the ownership locks of the items (R7)."""
        return Locker(client, keys, self.name)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Tasks that run beside the workers for as long as the farm does; a kind adds its own."""
        return (self.sweep.run(self.context.clock),)

    def publish(self, recorder: Recorder) -> None:
        """Write the metrics that only a scrape needs; a kind adds its own."""
        recorder.set("farmd_blocked", self.blocked(), kind=self.name)

    @property
    def guard(self) -> FailsafeGuard:
        """The guard that freezes removals of this kind."""
        return self.context.guards[self.name]

    def items(self) -> Mapping[str, Item]:
        """All items; an item whose record does not decode is marked as broken."""
        return self._records.items()

    def trusted(self) -> bool:
        """Whether an item that is missing here is proven to be gone (R20)."""
        return self._records.trusted()

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the changed items, and with whether the change can affect claiming."""
        self._records.subscribe(changed)

    def block(self, item: str, blocked: bool) -> None:
        """Note whether the item's worker is blocked, for the metric."""
        (self._blocked.add if blocked else self._blocked.discard)(item)

    def hold_back(self, item: str, wake: Wake | None) -> None:
        """From now on wake the item's worker at each change of the freeze; None: not any more."""
        if wake is None:
            self._held_back.pop(item, None)
        else:
            self._held_back[item] = wake

    def _freeze_changed(self) -> None:
        for wake in self._held_back.values():
            wake.set()

    def blocked(self) -> int:
        """How many items of this farm are blocked."""
        return len(self._blocked)
