"""The worker of one replication controller (p2 ``pkg/rc/replication_controller.go``).

Read, ask the scheduler, decide, execute, say how it went: the whole state each time, never the event. It
ends only by cancellation or when its claim is lost. Errors of the store are retried with backoff; blocked
is a state with a reason, woken by changes of the world and not by a timer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import structlog

from farmd.commands import deletion
from farmd.commands.mutation import Call
from farmd.farm.cycles import BACKOFF_LIMIT, BACKOFF_START, FOR_PEOPLE, Outcome
from farmd.farm.spending import Spending
from farmd.placement import Report, Subject
from farmd.pods.state import Place
from farmd.replication import changes, healing, reasons
from farmd.replication import plan as planning
from farmd.replication.commands import family_of
from farmd.replication.model import Plan, Snapshot
from farmd.replication.reading import Reader, Reading
from farmd.replication.report import Reporter
from farmd.wake import Wake, wait
from scheduler.errors import SchedulerError
from store import operations, rcs
from store.entry import Entry, Stored
from store.errors import (
    SessionSuspended,
    StoreError,
)
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.replication.kind import Tools

log = structlog.get_logger()

CONTENDED_SECONDS = 30.0
LOCK_LOOK_SECONDS = 5.0
TOO_MANY = "pods: more replacements in a minute than the removal budget allows"
# Deadlines are kept by the wall clock, waits by another one.
TIMER_SLACK = 0.05


class ReplicationController:
    """Keeps one RC converged while its claim lasts (seed ``ReplicationController``)."""

    __slots__ = (
        "_backoff",
        "_claim",
        "_contended_since",
        "_id",
        "_key",
        "_reader",
        "_reporter",
        "_session",
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
        self._key = tools.keys.record("rcs", claim.item)
        self._wake = wake
        self._backoff = BACKOFF_START
        self._unsettled = False
        self._contended_since: float | None = None
        self._reader = Reader(claim.item, tools, self._wake.set)
        self._reporter = Reporter(claim, session, tools)
        self._spending = Spending(tools.world, "rcs", claim.item, tools.budget, tools.guard)

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
        tools.world.attach("rcs", self._id, self._wake.set)
        tools.sweep.attach(self._id, self._look_at_status)
        try:
            while True:
                await tools.turns.turn()
                self._wake.clear()
                started = tools.clock.mono()
                outcome = await self._guarded_cycle()
                tools.recorder.observe(
                    "farmd_cycle_duration_seconds", tools.clock.mono() - started, kind="rcs"
                )
                tools.recorder.count("farmd_cycles_total", kind="rcs", result=outcome.result)
                tools.world.block(self._id, outcome.result in ("blocked", "frozen"))
                yield outcome
                await wait(self._wake, tools.clock, outcome.after)
        finally:
            tools.sweep.detach(self._id)
            tools.world.detach(self._id)
            tools.moves.forget(self._id)

    def _look_at_status(self, entry: Entry | None) -> None:
        """Say it again where another hand deleted or changed what stands in the store."""
        if self._reporter.differs(entry):
            self._wake.set()

    async def gone(self) -> None:
        """The RC does not exist any more, and with it what was wrong with it."""
        await self._reporter.over()

    def current_pods(self) -> list[Place]:
        """All pods managed by this RC, as (node, instance) (seed ``CurrentPods``)."""
        return sorted(self._tools.world.pods(self._id))

    async def _guarded_cycle(self) -> Outcome:
        """One cycle; what the store refuses is retried later, with backoff and jitter."""
        try:
            outcome = await self._cycle()
        except (StoreError, SchedulerError) as error:
            delay = self._backoff * self._tools.rng.uniform(0.75, 1.25)
            self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
            if isinstance(error, SessionSuspended):
                delay = min(delay, 1.0)
            log.warning(
                "rc.cycle.failed", rc_id=self._id, error_code=error.code, error=str(error), after_s=delay
            )
            stored = self._tools.caches.rcs.get(self._key)
            if isinstance(error, FOR_PEOPLE) and stored is not None:
                await self._reporter.block(f"{error.code}: {error}", stored.index)
                return Outcome("blocked", delay, error.code)
            return Outcome("backoff", delay, error.code)
        if outcome.result != "rejected":
            self._backoff = BACKOFF_START
        return outcome

    async def _cycle(self) -> Outcome:
        if self._unsettled:
            await self._reread()
        self._spending.settle()
        world, rcs_tree = self._tools.world, self._tools.caches.rcs
        if (broken := rcs_tree.broken.get(self._key)) is not None:
            due = await self._reporter.block(broken.message, int(broken.fields.get("index", 0)))
            return Outcome("blocked", due, "the record does not decode")
        stored = rcs_tree.get(self._key)
        if stored is None:
            await self._reporter.over()
            return Outcome("blocked", None, "the record is gone")
        if (broken := world.broken_pod(self._id)) is not None:
            due = await self._reporter.block(broken.message, stored.index)
            return Outcome("blocked", due, "a pod does not decode")
        try:
            return await self._converge(stored)
        finally:
            self._tools.moves.leave(self._id)

    async def _converge(self, stored: Stored[rcs.ReplicationController]) -> Outcome:
        world = self._tools.world
        reading = await self._look(stored)
        snapshot = reading.snapshot
        plan = planning.decide(snapshot)
        world.hunger(self._id, bool(snapshot.offer.missing or snapshot.cramped))
        world.hold_back(self._id, plan.blocked.startswith("frozen"))
        if not plan.empty:
            with world.expecting(self._id, plan.arriving):
                return await self._execute(reading, plan)
        if plan.ends:
            return await self._end(stored)
        if snapshot.offer.contended:
            return self._rejected(snapshot.offer.why)
        # Nothing to change: now there is time to tell people, as often as is useful to them.
        status_due = await self._reporter.say(snapshot, plan, stored.index)
        after = self._look_again(status_due, plan, snapshot)
        if plan.blocked:
            frozen = plan.blocked.startswith("frozen")
            return Outcome("frozen" if frozen else "blocked", after, plan.blocked)
        return Outcome("done" if after is None else "after", after)

    def _look_again(self, status_due: float | None, plan: Plan, snapshot: Snapshot) -> float | None:
        """When time alone changes something; a converged RC owns no timer (R23a)."""
        due = [status_due, None if plan.after is None else plan.after + TIMER_SLACK]
        if snapshot.locked:
            due.append(LOCK_LOOK_SECONDS * self._tools.rng.uniform(0.75, 1.25))
        return min((at for at in due if at is not None), default=None)

    async def _end(self, stored: Stored[rcs.ReplicationController]) -> Outcome:
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

    # -- read ----------------------------------------------------------------------------------
    async def _reread(self) -> None:
        """After an execution that did not end well: nothing is planned before its outcome was read (R12)."""
        caches = self._tools.caches
        await caches.rcs.barrier([self._key])
        await caches.pods.barrier([self._tools.keys.pods(self._id)])
        await caches.work.barrier()
        self._unsettled = False

    async def _look(self, stored: Stored[rcs.ReplicationController]) -> Reading:
        """A reading; what other workers of this process change is waited for, but not for ever (R17)."""
        reading = await self._reader.read(stored)
        offer, now = reading.snapshot.offer, self._tools.clock.mono()
        if not offer.contended:
            self._contended_since = None
        elif self._contended_since is None:
            self._contended_since = now
        elif now - self._contended_since > CONTENDED_SECONDS:
            patient = dataclasses.replace(offer, contended=False)
            return dataclasses.replace(reading, snapshot=dataclasses.replace(reading.snapshot, offer=patient))
        return reading

    # -- execute -------------------------------------------------------------------------------
    async def _execute(self, reading: Reading, plan: Plan) -> Outcome:
        tools, snapshot = self._tools, reading.snapshot
        if not self._spending.allows(healing.unasked(snapshot, plan), TOO_MANY):
            return Outcome("frozen", tools.rng.uniform(1.0, 2.0), "the removal budget is spent")
        report = await self._commit(reading, plan)
        self._spending.settle()
        log.info(
            "rc.cycle.done",
            rc_id=self._id,
            placed=len(plan.additions),
            removed=len(plan.removals),
            moved=len(plan.moves),
            repaired=len(plan.repairs),
            replaced=len(plan.replacements),
            step=plan.step.action if plan.step is not None else "",
            committed=report.committed,
            reason=report.reason or plan.blocked,
        )
        if not report.replan:
            if plan.step is not None:
                await self._reporter.stepped(snapshot, plan.step)
            # Own commits woke this worker already; the next cycle confirms and writes the status.
            return Outcome("done", None, plan.blocked)
        if plan.step is not None:
            await tools.placement.reread_intent(*plan.step.new)
        return self._rejected(report.reason)

    async def _commit(self, reading: Reading, plan: Plan) -> Report:
        tools, stored, snapshot = self._tools, reading.stored, reading.snapshot
        units = await changes.units(reading, plan, await self._reader.request(stored.record), tools)
        actor, why = f"farm/{tools.farm}", reasons.why(snapshot, plan)
        subject = Subject("rcs", self._id, stored.record.name, actor, self._key, stored.index, why)
        self._unsettled = True
        report = await tools.placement.execute(
            units,
            subject,
            self._claim,
            self._session,
            standing=len(snapshot.pods),
            guards=self._guards(reading, plan),
        )
        self._unsettled = False
        return report

    def _guards(self, reading: Reading, plan: Plan) -> Sequence[Operation]:
        """What must hold besides the fence; the rollout that manages an RC may hold its mutation lock."""
        guards = changes.verdicts(reading, plan, self._tools)
        if plan.step is None:
            return guards
        guards += changes.unclaimed(reading, plan.step, self._tools)
        if not reading.stored.record.managed_by:
            guards.append(operations.check_not_exists(self._tools.keys.mutation_lock("rcs", self._id)))
        return guards

    def _rejected(self, reason: str) -> Outcome:
        delay = self._tools.rng.uniform(0.0, self._backoff)
        self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
        return Outcome("rejected", delay, reason)
