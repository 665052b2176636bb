"""House-keeping as a kind of work: one item for each chore, which always exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farmd.config.sections import HousekeepingSection
from farmd.farm.kind import Items
from farmd.farm.writer import Writer
from farmd.housekeeping.audit import AuditPruning
from farmd.housekeeping.leavings import LeavingsCollection
from farmd.housekeeping.manifests import ManifestCollection
from farmd.housekeeping.model import DEFAULTS, Seen
from farmd.housekeeping.worker import Chore, Housekeeper
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.locks import Claim
from store.sessions import Session

CHORES: dict[str, Callable[[Context, HousekeepingSection, Writer, Seen], Chore]] = {
    "manifests": ManifestCollection,
    "audit": AuditPruning,
    "leavings": LeavingsCollection,
}


class Housekeeping(Kind):
    """The kind ``housekeeping``. Its items have no records and no labels."""

    name = "housekeeping"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._seen: dict[str, Seen] = {chore: {} for chore in CHORES}
        context.caches.on_forget(self._forget)

    def _forget(self) -> None:
        for seen in self._seen.values():
            seen.clear()

    def records(self) -> Items:
        """The chores, which have no records."""
        return Items((), self.context.keys, always=CHORES)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the statuses; the chores read everything else themselves, consistently, after their claim
        (R15).
        """
        await self.recollection.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> Housekeeper:
        """A worker for one chore."""
        settings: HousekeepingSection = self.context.sections.get(self.name, DEFAULTS)
        return Housekeeper(self, claim, session, wake, settings, CHORES[claim.item], self._seen[claim.item])
