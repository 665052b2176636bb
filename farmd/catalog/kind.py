"""Consul's catalogue as a kind of work: one item per service that asks to be there, and one for leftovers.

The records are those of services. A farm that knows no such kind claims none of its items, and nothing else
of a service depends on them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from farmd.catalog.facts import Shared
from farmd.catalog.worker import LeftoverWorker, MembersWorker, ServiceWorker
from farmd.farm.kind import Items
from farmd.farm.plan import Item
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.catalog import MEMBERS
from store.families import SERVICES
from store.locks import Claim
from store.ports import Recorder
from store.sessions import Session

LEFTOVERS = "leftovers"


class Catalog(Kind):
    """The kind ``catalog``."""

    name = "catalog"

    def __init__(self, context: Context) -> None:
        self._shared = Shared(context)
        super().__init__(context)

    def records(self) -> Items:
        """The services that ask for it, the leftovers, and farmd itself where the setting says so."""
        return Items(
            (self._shared.tree,), self.context.keys, self._item, always=(LEFTOVERS, *self._shared.members)
        )

    def _item(self, service: str) -> Item | None:
        stored = self._shared.asked(service)
        return None if stored is None else Item(service, stored.index)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records and the items' last statuses; the workers read the catalogue itself (R15)."""
        await self._shared.tree.barrier([self.context.keys.record(SERVICES.name, item) for item in items])
        await self.recollection.read(items)
        self._shared.view.expire()

    def worker(self, claim: Claim, session: Session, wake: Wake) -> ServiceWorker | LeftoverWorker:
        """A worker for one service, or for the leftovers."""
        if claim.item == LEFTOVERS:
            return LeftoverWorker(self, claim, session, wake, self._shared)
        of = MembersWorker if claim.item in MEMBERS else ServiceWorker
        return of(self, claim, session, wake, self._shared)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of the kind, with the one that follows the catalogue."""
        return (*super().background(), self._shared.view.run(self._shared.needed))

    def publish(self, recorder: Recorder) -> None:
        """Write how many entries of this farm's services there are."""
        super().publish(recorder)
        for status, count in self._shared.view.counted(self._shared.followers).items():
            recorder.set("farmd_catalog_entries", count, status=status)
