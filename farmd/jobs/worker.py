"""The worker of one job on nodes: reads, decides by the plan that both backends share, and changes pods.

What must never break: what a job has become (``runs/<id>``) is written before, or with, anything that rests
on it, so whoever takes the job over finds the same end and takes it in once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from farmd.jobs import plan as planning
from farmd.jobs import reader, report, writes
from farmd.jobs.commands import MEND
from farmd.jobs.facts import Need, Plan
from farmd.jobs.reader import Backend, Facts
from farmd.jobs.report import tell_blocked
from farmd.jobs.run_copy import RunCopy
from farmd.jobs.writes import release
from farmd.pods.changes import arriving
from farmd.runtime.wake import Wake, earliest
from farmd.work.managing import Phases
from farmd.work.model import Ask, Outcome
from farmd.work.named import DELETED
from farmd.work.owner import OwnerKind, OwnerWorker
from store import manifests, operations
from store.entry import Stored
from store.errors import InputInvalid, RecordInvalid
from store.families import RUNS
from store.jobs import Job, JobStatus, Run, check
from store.locks import Claim
from store.operations import Operation
from store.peers import MAX_BYTES, too_large
from store.pods import Place
from store.sessions import Session

LONGEST_PAUSE = 60.0
# A larger document of peers is written before the intents that refer to it, and not along with them.
ALONG_BYTES = 16 * 1024
# So many transactions take in ends that were seen together, before all members are seen anew.
IN_A_ROW = 32
OVER = "it is over, and its ttl has passed"


class JobWorker(OwnerWorker[Facts, Plan]):
    """Runs one job while its claim lasts."""

    __slots__ = ("_backend", "_phases", "_waits")

    def __init__(
        self, kind: OwnerKind, claim: Claim, session: Session, wake: Wake, run: RunCopy, phases: Phases
    ) -> None:
        super().__init__(kind, claim, session, wake)
        self._backend = Backend(kind, claim.item, run)
        self._phases = phases
        self._waits = 0.0, 0.0

    # -- the frame's hooks -----------------------------------------------------------------------
    def detach(self) -> None:
        """Undo ``attach``, and be counted no more."""
        super().detach()
        self._phases.see(self.claim.item, "")

    async def reread(self) -> None:
        """Read the outcome of a transaction that nobody answered (R12)."""
        self._backend.run.forget()
        await super().reread()
        await self.context.caches.intent.barrier()

    async def look(self, stored: Stored[Job]) -> Facts | Outcome:
        """The job with its members. A record beyond the limits is reported, and nothing of it is touched
        before a person deletes it.
        """
        try:
            if not stored.record.deleting:
                check(stored.record, f"job {stored.record.name!r}")
        except InputInvalid as error:
            return Outcome("blocked", await self.block(error.message), error.code)
        try:
            return await self._backend.read(stored)
        except RecordInvalid as error:
            return Outcome("blocked", await self.block(f"{error.message}; {MEND}"), error.code)

    def decide(self, snapshot: Facts) -> Plan | Ask[Need]:
        """Pure (``plan.py``). Members that ended go from nodes that are drained: a drain waits for them."""
        plan = planning.decide(snapshot.snapshot)
        if isinstance(plan, Ask) or plan.delete_job or snapshot.snapshot.frozen:
            return plan
        going = {member.id for member in plan.remove}
        left = tuple(each for each in snapshot.left_on_drained() if each.id not in going)
        return replace(plan, remove=(*plan.remove, *left)) if left else plan

    async def answer(self, snapshot: Facts, ask: Ask[Need]) -> Facts:
        """The reading with places for the slots that lack a member; none while a gang that gave its places
        back leaves them to others.
        """
        if (left := self._pause(snapshot.snapshot.run)) > 0:
            return snapshot.without_room("it gave its places back, and tries again in a moment", left)
        return await self._backend.answer(snapshot, ask.need)

    def decided(self, snapshot: Facts, plan: Plan) -> None:
        """Whatever makes room wakes it while slots have no place."""
        short = snapshot.places is not None and bool(snapshot.places.why)
        self.context.fleet.unschedulable(self.claim.item, short)

    async def alert(self, snapshot: Facts, plan: Plan) -> float | None:
        """A low alert once it is blocked for ten minutes."""
        blocked = plan.blocked
        why = "" if blocked is None or blocked.wanted else blocked.text
        return await tell_blocked(self, snapshot.stored.record.name, why)

    async def block(self, reason: str) -> float | None:
        """Report why it cannot be worked on, with the same alert; returns when to look again."""
        stored = self.kind.tree.get(self.key)
        due = await tell_blocked(self, self.claim.item if stored is None else stored.record.name, reason)
        return earliest(due, await super().block(reason))

    def obstructed(self, reason: str) -> JobStatus:
        """The status of a job that cannot go on, with its slots as they were told of last."""
        known = self.status.known
        told = known if isinstance(known, JobStatus) else JobStatus(state="blocked")
        placed = sum(not pod.record.done for pod in self.context.fleet.pods(self.claim.item).values())
        return msgspec.structs.replace(told, state="blocked", reason=reason, placed=placed)

    def describe(self, snapshot: Facts, plan: Plan) -> JobStatus:
        """Its state, and how many slots are where."""
        found = report.status(snapshot, plan, self.context.farm, self.context.clock.now())
        self._phases.see(self.claim.item, found.state)
        return found

    async def report(self, snapshot: Facts, plan: Plan) -> float | None:
        """Write the status; returns when time alone changes what is known of a member."""
        return earliest(await super().report(snapshot, plan), snapshot.after)

    # -- writing ---------------------------------------------------------------------------------
    async def act(self, snapshot: Facts, plan: Plan) -> Outcome:
        """Change the run and its members; what follows is planned anew.

        Ends that were seen together, and are more than one transaction can take in, are taken in at once.
        """
        if plan.delete_job:
            return await self.end(DELETED if snapshot.stored.record.deleting else OVER)
        for _ in range(IN_A_ROW):
            changed = await self._change(snapshot, plan)
            if isinstance(changed, Outcome):
                return changed
            if plan.run is None or plan.remove:
                break
            snapshot = self._backend.again(snapshot, changed)
            following = self.decide(snapshot)
            if isinstance(following, Ask) or following.empty or following.remove:
                break
            plan = following
        return Outcome("after", 0.0)

    async def _change(self, snapshot: Facts, plan: Plan) -> list[Place] | Outcome:
        """Change the run and its members; the places that were changed, or why not all of it was done."""
        context = self.context
        budgeted = self._budgeted(snapshot, plan)
        if isinstance(budgeted, Outcome):
            return budgeted
        plan = self._noted(snapshot, budgeted)
        view = snapshot.view if snapshot.view is not None else context.fleet.view()
        told = release(snapshot, plan, self._host)
        if told is not None and len(told.document) > MAX_BYTES:
            return Outcome("blocked", await self.block(too_large(told.document)), "peers")
        document = await self._documented(told.document) if told is not None and told.document else []
        units = writes.units(snapshot, plan, told, view, context.keys, self._backend.run)
        done = await self.carry_out(
            snapshot.stored,
            report.why(snapshot, plan),
            units,
            standing=len(snapshot.pods),
            checks=[*document, *self._verdicts(snapshot, plan)],
            arriving=arriving(units),
        )
        if done.replan:
            self._backend.run.forget()
            return Outcome("rejected", None, done.reason)
        reader.count(context.recorder, snapshot.snapshot, plan)
        return [(change.node, change.instance) for each in units for change in each.changes]

    def _verdicts(self, snapshot: Facts, plan: Plan) -> list[Operation]:
        """Checks that the nodes of members that are given up are still lost at the commit (R21)."""
        going = snapshot.given_up([*plan.remove, *snapshot.tried_again(plan)])
        return self.context.placement.verdicts(going, dict(snapshot.pods.values()))

    def _budgeted(self, snapshot: Facts, plan: Plan) -> Plan | Outcome:
        """What of a plan the removal budget allows (R19); an outcome: nothing.

        It is spent before the attempt of a lost member rises, so that a refused removal counts none.
        """
        record = snapshot.stored.record
        if record.deleting or record.suspend:
            return plan
        if (overdrawn := self.spend(snapshot.given_up(plan.remove))) is not None:
            return overdrawn
        if (overdrawn := self.spend(snapshot.given_up(snapshot.tried_again(plan)))) is None:
            return plan
        return replace(plan, run=None, create=(), release=()) if plan.remove else overdrawn

    async def _documented(self, document: bytes) -> list[Operation]:
        """What writes a document of peers along with the intents that refer to it; nothing if it stands now.

        The largest are larger than what a transaction may have.
        """
        ensured = manifests.ensure(self.context.keys, document)
        if len(document) <= ALONG_BYTES:
            return [ensured]
        await self.writer.commit(*self.stands())
        await self.context.client.put(ensured.key, document)
        return []

    def _host(self, node: str) -> str:
        return self.context.fleet.addresses.host(node)

    def _noted(self, snapshot: Facts, plan: Plan) -> Plan:
        """The plan with the pause after which a gang that gives its places back tries again.

        It is longer each time, and twice as long beside an older gang. Whoever takes the job over keeps it.
        """
        run = plan.run or snapshot.snapshot.run
        if not plan.give_back or self._pause(run) > 0:
            return plan
        job, others = snapshot.stored.record, (stored.record for stored in self.kind.tree.entries.values())
        younger = any(other.gang and other.created < job.created for other in others)
        pause = self.context.rng.uniform(0.0, min(LONGEST_PAUSE, 2.0**run.gave_back) * (1 + younger))
        due = self.context.clock.now() + pause
        noted = msgspec.structs.replace(run, gave_back=run.gave_back + 1, not_before=due)
        return replace(plan, run=noted)

    def _pause(self, run: Run) -> float:
        """Seconds for which a gang leaves places to others.

        They were noted by the clock of another farm, so this one counts no more than the longest pause.
        """
        now, mono = self.context.clock.now(), self.context.clock.mono()
        if run.not_before != self._waits[0]:
            self._waits = run.not_before, mono + min(run.not_before - now, 2 * LONGEST_PAUSE)
        return self._waits[1] - mono

    async def end(self, why: str = OVER, besides: Sequence[Operation] = ()) -> Outcome:
        """Delete the record with its run; blocked while nodes run what no plan waits for."""
        item = self.claim.item
        if running := self.context.fleet.processes.told(item):
            return Outcome("blocked", await self.block(running), "processes are left")
        run = operations.delete(self.context.keys.record(RUNS.name, item))
        return await super().end(why, (*besides, run))
