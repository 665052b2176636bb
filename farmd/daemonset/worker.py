"""The worker of one daemon set (p2 ``pkg/ds/daemon_set.go``).

Read, ask the scheduler about what changed, decide, execute, say how it went. It ends only by cancellation or
when its claim is lost. New nodes and changed ones wake it; a converged daemon set owns no timer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import structlog

from farmd.commands import deletion
from farmd.commands.mutation import Call
from farmd.daemonset import changes, reasons
from farmd.daemonset import plan as planning
from farmd.daemonset.commands import family_of
from farmd.daemonset.model import Plan, Snapshot
from farmd.daemonset.reading import Reader, Reading
from farmd.daemonset.report import Reporter
from farmd.farm.cycles import Cycles, Outcome
from farmd.farm.spending import Spending
from farmd.placement import Subject
from farmd.wake import Wake
from store.daemonsets import KIND, DaemonSet
from store.entry import Entry, Stored
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.daemonset.kind import Tools

log = structlog.get_logger()

TIMER_SLACK = 0.05


class DaemonSetWorker:
    """Keeps one daemon set converged while its claim lasts (seed ``DaemonSet``)."""

    __slots__ = (
        "_claim",
        "_cycles",
        "_id",
        "_key",
        "_reader",
        "_reporter",
        "_session",
        "_settled",
        "_spending",
        "_tools",
        "_unsettled",
        "_wake",
    )

    def __init__(self, claim: Claim, session: Session, tools: Tools, wake: Wake) -> None:
        self._claim = claim
        self._session = session
        self._tools = tools
        self._id = claim.item
        self._key = tools.keys.record(KIND, claim.item)
        self._wake = wake
        self._reader = Reader(claim.item, tools)
        self._reporter = Reporter(claim, session, tools)
        self._spending = Spending(tools.world, KIND, claim.item, tools.budget, tools.guard)
        self._unsettled = False
        stored = tools.caches.daemonsets.get(self._key)
        # The version of the record that is no news: what goes on under it is nobody's word (R19).
        self._settled = stored.index if stored is not None else 0
        self._cycles = Cycles(
            KIND, claim.item, self._wake, tools.clock, tools.rng, tools.recorder, self._tell, tools.turns
        )

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        async for _ in self.watch_desires():
            pass

    async def watch_desires(self) -> AsyncIterator[Outcome]:
        """Yield the outcome of each cycle, for ever (seed ``WatchDesires``)."""
        tools = self._tools
        tools.world.attach(KIND, self._id, self._wake.set)
        tools.sweep.attach(self._id, self._look_at_status)
        tools.watch.attach(self._id, self._wake.set)
        try:
            async for outcome in self._cycles.run(self._cycle):
                tools.watch.block(self._id, outcome.result in ("blocked", "frozen"))
                yield outcome
        finally:
            tools.watch.detach(self._id)
            tools.sweep.detach(self._id)
            tools.world.detach(self._id)

    def _look_at_status(self, entry: Entry | None) -> None:
        """Say it again where another hand deleted or changed what stands in the store."""
        if self._reporter.differs(entry):
            self._wake.set()

    async def gone(self) -> None:
        """The daemon set does not exist any more, and with it what was wrong with it."""
        await self._reporter.over()

    async def _tell(self, reason: str) -> None:
        if (stored := self._tools.caches.daemonsets.get(self._key)) is not None:
            await self._reporter.block(reason, stored.index)

    async def _cycle(self) -> Outcome:
        if self._unsettled:
            await self._reread()
        self._spending.settle()
        tools = self._tools
        if (broken := tools.caches.daemonsets.broken.get(self._key)) is not None:
            due = await self._reporter.block(broken.message, int(broken.fields.get("index", 0)))
            return Outcome("blocked", due, "the record does not decode")
        stored = tools.caches.daemonsets.get(self._key)
        if stored is None:
            await self._reporter.over()
            return Outcome("blocked", None, "the record is gone")
        if (broken := tools.world.broken_pod(self._id)) is not None:
            due = await self._reporter.block(broken.message, stored.index)
            return Outcome("blocked", due, "a pod does not decode")
        return await self._converge(stored)

    async def _converge(self, stored: Stored[DaemonSet]) -> Outcome:
        tools = self._tools
        reading = await self._reader.read(stored)
        snapshot = reading.snapshot
        plan = planning.decide(snapshot)
        contended = bool(snapshot.refused.get("contended"))
        tools.world.hunger(self._id, contended or bool(snapshot.cramped))
        tools.world.hold_back(self._id, plan.blocked.startswith("frozen"))
        if not plan.empty:
            return await self._execute(reading, plan)
        if plan.ends:
            return await self._end(stored)
        self._settled = stored.index
        if contended:
            return self._cycles.rejected("other changes of the nodes' reservations are in flight")
        # Nothing to change: now there is time to tell people, as often as is useful to them.
        due = await self._reporter.say(snapshot, plan, stored.index)
        timers = [due, None if plan.after is None else max(0.0, plan.after) + TIMER_SLACK]
        after = min((at for at in timers if at is not None), default=None)
        if plan.blocked:
            frozen = plan.blocked.startswith("frozen")
            return Outcome("frozen" if frozen else "blocked", after, plan.blocked)
        return Outcome("done" if after is None else "after", after)

    async def _end(self, stored: Stored[DaemonSet]) -> Outcome:
        tools = self._tools
        call = Call(tools.client, tools.keys, tools.clock, tools.ids, f"farm/{tools.farm}", deletion.REASON)
        return await deletion.finish(
            stored,
            call=call,
            family=family_of(call),
            claim=self._claim,
            session=self._session,
            caches=tools.caches,
            world=tools.world,
            block=self._reporter.block,
        )

    async def _reread(self) -> None:
        """After an execution that did not end well: nothing is planned before its outcome was read (R12)."""
        caches = self._tools.caches
        await caches.daemonsets.barrier([self._key])
        await caches.pods.barrier([self._tools.keys.pods(self._id)])
        self._unsettled = False

    # -- execute -------------------------------------------------------------------------------
    async def _execute(self, reading: Reading, plan: Plan) -> Outcome:
        tools, stored, snapshot = self._tools, reading.stored, reading.snapshot
        if not self._within_budget(plan, snapshot, stored.index):
            return Outcome("frozen", 0.0, "the removal budget is spent")  # the next cycle says so
        request = await self._reader.request(stored.record)
        actor, why = f"farm/{tools.farm}", reasons.why(snapshot, plan)
        subject = Subject(KIND, self._id, stored.record.name, actor, self._key, stored.index, why)
        self._unsettled = True
        report = await tools.placement.execute(
            changes.units(reading, plan, request, tools.clock.now()),
            subject,
            self._claim,
            self._session,
            standing=len(snapshot.pods),
        )
        self._unsettled = False
        self._spending.settle()
        log.info(
            "daemonset.cycle.done",
            daemonset_id=self._id,
            placed=len(plan.additions),
            removed=len(plan.removals),
            repaired=len(plan.repairs),
            replaced=len(plan.replacements),
            committed=report.committed,
            reason=report.reason or plan.blocked or plan.waiting,
        )
        if report.replan:
            return self._cycles.rejected(report.reason)
        # Own commits woke this worker already; the next cycle confirms and writes the status.
        return Outcome("done", None, plan.blocked)

    def _within_budget(self, plan: Plan, snapshot: Snapshot, index: int) -> bool:
        """Whether what no person asked for may be removed now."""
        leaving = [(place, snapshot.pods[place]) for place in plan.removals]
        unasked = [place for place, state in leaving if not (state.retained or state.draining)]
        if self._settled != index:
            return True
        evidence = "pods: daemon sets would remove more in a minute than the budget allows"
        return self._spending.allows(unasked, evidence)
