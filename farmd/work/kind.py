"""The base of all kinds of work: items to claim, what must be fresh before a plan, a worker for a claim.

A farm has one object for each kind; it holds what the kind's workers share.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import structlog

from farmd.failsafe.guard import FailsafeGuard
from farmd.farm.kind import Items, Worker
from farmd.farm.plan import Item
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.status import Recollection
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import StoreError
from store.families import FAMILIES
from store.keys import Keys
from store.locks import Claim, Locker
from store.ports import Clock, Recorder
from store.sessions import Session
from store.status import ItemStatus

# Sweeps statuses slowly, because no watch covers them: finds those that somebody deleted or changed (R25).
#
# It passes the stored status to the item's worker, which writes its own again.

log = structlog.get_logger()

# All statuses of a kind are read once in this time, in parts by the first letter of the item.
SWEEP_SECONDS = 300.0
SWEEP_PARTS = 16


class Shown(Protocol):
    """The worker of an item."""

    def look_at_status(self, entry: Entry | None) -> None:
        """What stands in the store; None: nothing does."""


@dataclass(eq=False)
class StatusSweep:
    """The statuses of the items of one kind that have a worker in this farm."""

    client: ConsulClient
    keys: Keys
    kind: str
    _shown: dict[str, Shown] = field(default_factory=dict, init=False)

    def attach(self, item: str, worker: Shown) -> None:
        """From now on show the item's worker its stored status, or None."""
        self._shown[item] = worker

    def detach(self, item: str) -> None:
        self._shown.pop(item, None)

    async def run(self, clock: Clock) -> None:
        """Read one part after the other, for ever."""
        for part in itertools.cycle(range(SWEEP_PARTS)):
            await clock.sleep(SWEEP_SECONDS / SWEEP_PARTS)
            firsts = {item[0] for item in self._shown if ord(item[0]) % SWEEP_PARTS == part}
            try:
                for first in sorted(firsts):
                    await self._look(first)
            except StoreError as error:
                log.debug("status.not_swept", kind=self.kind, code=error.code)

    async def _look(self, first: str) -> None:
        page = await self.client.list(self.keys.status(self.kind, first))
        standing = {self.keys.last_part(raw.key): raw for raw in page.items}
        for item, worker in list(self._shown.items()):
            if item.startswith(first):
                raw = standing.get(item)
                worker.look_at_status(None if raw is None else Entry.of(raw))


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
