"""House-keeping as a kind of work, one item for each chore, and its worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from farmd.config.sections import HousekeepingSection
from farmd.farm.kind import Items
from farmd.farm.writer import Writer
from farmd.housekeeping import facts
from farmd.housekeeping.chores import (
    ENDS_SECONDS,
    AccessAuditing,
    AuditPruning,
    LeavingsCollection,
    ManifestCollection,
)
from farmd.housekeeping.facts import DEFAULTS, Plan, Round, Seen, Snapshot
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.model import Outcome, frozen
from farmd.work.worker import Worker
from store.errors import StoreError
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session
from store.status import Status

# The worker of one chore: a round, then a long pause, for ever.
#
# The status says why a chore cannot run its round.

FIRST_SECONDS = 30.0
SOON_SECONDS = 5.0
FROZEN_SECONDS = 300.0


class Chore(Protocol):
    """One chore under one claim."""

    async def round(self) -> Round:
        """Do a bounded part of the chore."""


class Housekeeper(Worker[Snapshot, Plan]):
    """Runs a chore in rounds."""

    __slots__ = ("_chore", "_due", "_interval")

    BACKOFF = (15.0, 300.0)
    TOLD = (StoreError,)

    def __init__(
        self,
        kind: Kind,
        claim: Claim,
        session: Session,
        wake: Wake,
        settings: HousekeepingSection,
        chore: Callable[[Context, HousekeepingSection, Writer, Seen], Chore],
        seen: Seen,
    ) -> None:
        super().__init__(kind, claim, session, wake)
        clock, rng = self.context.clock, self.context.rng
        self._interval = settings.interval
        # A farm that has just started or taken over has more urgent work.
        self._due = clock.mono() + min(FIRST_SECONDS, settings.interval) * rng.uniform(0.5, 1.0)
        self._chore = chore(self.context, settings, self.writer, seen)

    def stands(self) -> Sequence[Operation]:
        """No checks: a chore has no record."""
        return ()

    async def read(self) -> Snapshot | Outcome:
        """The evidence of any kind's freeze, in this farm or in the store (R18)."""
        context = self.context
        if (early := self._due - context.clock.mono()) > 0:
            return Outcome("after", early)
        doubts = (guard.frozen() for guard in context.guards.values())
        if doubt := next((text for text in doubts if text), ""):
            return Snapshot(doubt)
        return Snapshot(await facts.freeze(context.client, context.keys, context.cluster, context.clock))

    def decide(self, snapshot: Snapshot) -> Plan:
        """A round, unless any kind is frozen."""
        if not snapshot.frozen:
            return Plan(round=True)
        return Plan(blocked=frozen(snapshot.frozen), after=min(FROZEN_SECONDS, self._interval))

    async def act(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """Run one round, then report success."""
        done = await self._chore.round()
        pause = SOON_SECONDS if done.more else self._interval
        self._due = self.context.clock.mono() + pause * self.context.rng.uniform(0.9, 1.1)
        await self.report(snapshot, plan)
        return Outcome("after", self._due - self.context.clock.mono())

    def describe(self, snapshot: Snapshot, plan: Plan) -> Status:
        """Converged, or frozen with the evidence."""
        return Status(
            state="frozen" if plan.blocked else "converged",
            reason=snapshot.frozen,
            farm=self.context.farm,
            since=self.context.clock.now(),
        )


# House-keeping as a kind of work: one item for each chore, which always exist.

CHORES: dict[str, Callable[[Context, HousekeepingSection, Writer, Seen], Chore]] = {
    "manifests": ManifestCollection,
    "audit": AuditPruning,
    "leavings": LeavingsCollection,
    "access": AccessAuditing,
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
        if claim.item == "access":  # people wait for these records
            settings = msgspec.structs.replace(settings, interval=min(settings.interval, ENDS_SECONDS))
        return Housekeeper(self, claim, session, wake, settings, CHORES[claim.item], self._seen[claim.item])
