"""Schedules as a kind of work: the kind with its one timer, and the worker of one schedule."""

from __future__ import annotations

import heapq
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from farmd.commands.mutation import Call, Mutation, audited, registered
from farmd.farm.writer import Write
from farmd.runtime.wake import Wake, wait
from farmd.schedules import plan as planning
from farmd.schedules.commands import due_job, jobs
from farmd.schedules.metrics import MOST_EXPORTED, RESULTS, STATES, SUCCEEDED
from farmd.schedules.plan import End, Plan, Snapshot
from farmd.work.context import Context
from farmd.work.managing import Phases
from farmd.work.model import Outcome
from farmd.work.named import LOOK_AGAIN_SECONDS, NamedKind, NamedWorker
from store import codec
from store.entry import Stored
from store.errors import Conflict, InputInvalid, Locked, NotFound, TransactionRejected
from store.families import RUNS
from store.jobs import Run
from store.locks import Claim
from store.operations import Operation
from store.ports import Clock
from store.schedules import KIND, Fired, Schedule, ScheduleStatus
from store.sessions import Session

LONGEST = 60.0
"""The wall clock may be set while the timer sleeps, and it looks again after so many seconds."""
CROWDED_FOR = 10.0
"""A schedule that is due holds back what others report for at most so long."""
REPORT_LATER = 1.0
ALERTS = ("failing", "overrun", "missed")


class ScheduleWorker(NamedWorker[Snapshot, Plan]):
    """Makes the jobs of one schedule."""

    __slots__ = ("_refused", "_young")

    kind: Schedules

    def __init__(self, kind: Schedules, claim: Claim, session: Session, wake: Wake) -> None:
        super().__init__(kind, claim, session, wake)
        self._refused = False
        self._young = ""

    def detach(self) -> None:
        """Wait for no time any more."""
        self.kind.timer.served(self.claim.item)
        self.kind.timer.set(self.claim.item, None, self.wake)
        self.kind.phases.see(self.claim.item, "")
        self.kind.export(self.claim.item, None)

    async def look(self, stored: Stored[Schedule]) -> Snapshot:
        """The schedule, and how its jobs ended, which costs a request for each that runs.

        A job that the cycle before created is first asked about when time alone makes the next look due, and
        none while the jobs of other schedules that are due come first.
        """
        schedule, ends = stored.record, dict[str, End]()
        young, self._young = self._young, ""
        crowded = self.kind.timer.crowded(self.claim.item)
        for each in () if crowded else schedule.active:
            if each.job != young and (end := await self._end(each)) is not None:
                ends[each.job] = end
        now = self.context.clock.now()
        date = self.context.client.date()
        ahead = 0.0 if date is None else max(0.0, now - date)
        return Snapshot(schedule, now - ahead, ends, self.frozen(), ahead)

    async def _end(self, fired: Fired) -> End | None:
        """How a job ended; None: it has not.

        Raises:
            RecordInvalid: nobody can tell how far it is.
        """
        key = self.context.keys.record(RUNS.name, fired.job)
        entry = await self.context.client.read(key, mode="consistent")
        if entry is None:
            return End("deleted")
        run = codec.decode(Run, entry.value, key)
        if not run.outcome:
            return None
        return End(run.outcome, ": ".join(filter(None, (run.reason, run.message))), run.finished)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Pure (``plan.py``)."""
        return planning.decide(snapshot)

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """Be woken when time alone changes the plan."""
        at = None if plan.next is None else plan.next + snapshot.ahead
        self.kind.timer.set(self.claim.item, at, self.wake, due=plan.next == plan.upcoming)
        if plan.empty:
            self.kind.timer.served(self.claim.item)
            self.kind.export(self.claim.item, snapshot.schedule)
            self.kind.phases.see(self.claim.item, planning.state(snapshot.schedule, plan)[0])

    async def act(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """One transaction: the schedule as it is wanted, with the job that is made or the jobs that go."""
        if plan.ends:
            return await self.end()
        assert plan.wanted is not None
        wanted, besides = plan.wanted, list[Operation]()
        try:
            for job in plan.stop:
                besides += await self._deletion(job, plan.why)
        except Locked as error:
            return Outcome("blocked", LOOK_AGAIN_SECONDS, error.code)
        if plan.fire is not None:
            wanted, made = await self._made(wanted, plan)
            besides += made
        else:
            besides.append(self.audit(plan.action, plan.why, name=wanted.name))
        stored = self.kind.tree.get(self.key)
        if stored is None or stored.index != self.index:
            return Outcome("after", 0.0, "the record changed")
        try:
            await self.writer.commit(Write.over(self.key, wanted, stored, self.kind.tree), *besides)
        except TransactionRejected:
            # The job's name may be taken, or the cluster's record newer: the next cycle reads both.
            self._refused = True
            self.kind.doubt_registration()
            raise
        self._refused = False
        self._young = wanted.fired[-1].job if plan.fire is not None and wanted.fired else ""
        result = plan.action.partition(".")[2]
        if result in RESULTS:
            self.context.recorder.count("farmd_schedule_times_total", result=result)
        return Outcome("after", 0.0)

    async def _made(self, wanted: Schedule, plan: Plan) -> tuple[Schedule, list[Operation]]:
        """The schedule with the job of a time, and the writes that make it; none if its name is taken, or its
        template makes no such job.
        """
        assert plan.fire is not None
        call = self.call(f"schedule/{wanted.name}: {plan.why}")
        try:
            spec, stands = await due_job(call, wanted, plan.fire)
            made: Mutation = await self._creation(call, spec)
        except (Conflict, InputInvalid) as error:
            skipped = msgspec.structs.replace(wanted, skipped=wanted.skipped + 1)
            return skipped, [self.audit("schedule.skip", error.message, name=wanted.name)]
        fired = Fired(due=plan.fire, job=made.change.id, name=spec.name)
        grown = msgspec.structs.replace(wanted, fired=[*wanted.fired, fired])
        told = (
            audited(call, made.change) if made.needed else self.audit(plan.action, plan.why, name=wanted.name)
        )
        return grown, [*stands, *made.operations, told]

    async def _creation(self, call: Call, spec: Any) -> Mutation:
        """The creation of a job; after a refusal with a look whether its name is free.

        Raises:
            Conflict: another job has the name.
        """
        if self._refused:
            return await jobs().create(call, spec)
        return await jobs().creation(call, spec, await self.kind.registration(call))

    async def _deletion(self, job: str, why: str) -> Sequence[Operation]:
        """The writes that mark a job for deletion; none if it is gone, or on its way."""
        call = self.call(why)
        try:
            found: Mutation = await jobs().delete(call, job, cascade=True)
        except NotFound:
            return ()
        return (*found.operations, audited(call, found.change)) if found.needed else ()

    async def report(self, snapshot: Snapshot, plan: Plan) -> float | None:
        """Write the status, after the jobs of all schedules that are due."""
        if self.kind.timer.crowded(self.claim.item):
            return REPORT_LATER
        return await super().report(snapshot, plan)

    def describe(self, snapshot: Snapshot, plan: Plan) -> ScheduleStatus:
        """The status, with the next time."""
        state, reason = planning.state(snapshot.schedule, plan)
        active = len(snapshot.schedule.active)
        return ScheduleStatus(
            state=state,
            reason=reason,
            next=plan.upcoming,
            active=active,
            farm=self.context.farm,
            since=self.context.clock.now(),
        )

    async def alert(self, snapshot: Snapshot, plan: Plan) -> float | None:
        """Tell of times that were missed, of jobs that fail, and of one that runs for too long."""
        state, why = planning.state(snapshot.schedule, plan)
        for each in ALERTS:
            text = f"schedule {snapshot.schedule.name!r}: {why}" if each == state else ""
            details = {"schedule_id": self.claim.item, "farm": self.context.farm}
            await self.status.incidents.say(f"schedule_{each}_{self.claim.item}", text, details)
        return None


class Timer:
    """The one timer of a farm, so that an idle schedule costs none: it wakes the worker of each item at its
    time. The times are those of the wall clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, str]] = []
        self._times: dict[str, tuple[float, Wake, bool]] = {}
        self._due: dict[str, float] = {}
        self._changed = Wake()

    def set(self, item: str, at: float | None, wake: Wake, *, due: bool = False) -> None:
        """Wake this worker at a time, in place of an earlier wish; None: at none. ``due``: to make a job."""
        if at is None:
            self._times.pop(item, None)
            return
        known = self._times.get(item)
        self._times[item] = at, wake, due
        if known is None or known[0] != at:
            first = self._heap[0][0] if self._heap else None
            heapq.heappush(self._heap, (at, item))
            if first is None or at < first:
                self._changed.set()

    def served(self, item: str) -> None:
        """The item has nothing more to do for its time."""
        self._due.pop(item, None)

    def crowded(self, item: str) -> bool:
        """Whether this item's time is served while those of others are not yet."""
        since = self._clock.mono() - CROWDED_FOR
        while self._due and self._due[oldest := next(iter(self._due))] < since:
            del self._due[oldest]
        return bool(self._due) and item not in self._due

    async def run(self) -> None:
        """Wake workers until cancelled."""
        while True:
            self._changed.clear()
            now = self._clock.now()
            while self._heap and self._heap[0][0] <= now:
                at, item = heapq.heappop(self._heap)
                if (known := self._times.get(item)) is not None and known[0] == at:
                    del self._times[item]
                    if known[2]:
                        self._due.pop(item, None)
                        self._due[item] = self._clock.mono()
                    known[1].set()
            left = min(LONGEST, self._heap[0][0] - now) if self._heap else None
            await wait(self._changed, self._clock, left)


class Schedules(NamedKind):
    """The kind ``schedules``."""

    name = KIND
    works = ScheduleWorker

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.phases = Phases(context.recorder, "farmd_schedules", "state", STATES)
        self.timer = Timer(context.clock)
        self._registration: Operation | None = None
        self._exported: dict[str, str] = {}

    def export(self, item: str, schedule: Schedule | None) -> None:
        """Export when a schedule succeeded last, if it asks for it; None: this farm works on it no more."""
        shown = schedule is not None and schedule.export_success and schedule.succeeded
        if (name := self._exported.pop(item, "")) and not (shown and schedule and schedule.name == name):
            self.context.recorder.forget(SUCCEEDED, item=name)
        if shown and schedule and len(self._exported) < MOST_EXPORTED:
            self._exported[item] = schedule.name
            self.context.recorder.set(SUCCEEDED, schedule.succeeded, item=schedule.name)

    async def registration(self, call: Call) -> Operation:
        """The check that the cluster stays registered; its record is read once for all schedules."""
        if self._registration is None:
            self._registration = await registered(call)
        return self._registration

    def doubt_registration(self) -> None:
        """Read the cluster's record again, because a transaction was refused."""
        self._registration = None

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of the kind, with its one timer."""
        return (*super().background(), self.timer.run())
