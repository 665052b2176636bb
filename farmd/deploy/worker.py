"""The worker of one deployment: each cycle plans from the present state."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from farmd.commands.mutation import Scalar
from farmd.deploy import changes, report
from farmd.deploy import writes as deploy_writes
from farmd.deploy.changes import VolumeNotes
from farmd.deploy.facts import Facts, Reader, ServiceFacts, ServiceStep
from farmd.deploy.plan import LOOK_AGAIN_SECONDS, Cycle, next_cycle
from farmd.deploy.report import DeploymentAlerts
from farmd.pods.changes import NodeChanges, Note, together
from farmd.runtime.wake import Wake
from farmd.work.managing import ManagingKind, ManagingWorker
from farmd.work.model import Outcome
from store import operations
from store.deployments import FAILED, Deployment, DeploymentStatus, Goal
from store.entry import Stored
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session

FREED_AT_ONCE = 10
GO_ON = Outcome("after", 0.0)


class DeploymentWorker(ManagingWorker[Facts, Cycle]):
    """Brings the services of one deployment to their goals, or back, while its claim lasts."""

    __slots__ = ("_alarms", "_reader")

    def __init__(self, kind: ManagingKind, claim: Claim, session: Session, wake: Wake) -> None:
        super().__init__(kind, claim, session, wake)
        self._alarms = DeploymentAlerts(self.status.incidents, self.context)
        self._reader = Reader(claim.item, self.context)

    # -- the frame's hooks -----------------------------------------------------------------------
    async def look(self, stored: Stored[Deployment]) -> Facts | Outcome:
        """The deployment, the owners of its services and their pods."""
        self.follow(stored.record)
        if (broken := self.illegible()) is not None:
            return await self.unreadable(*broken)
        return await self._reader.read(stored)

    def decide(self, snapshot: Facts) -> Cycle:
        """Pure (``plan.py``)."""
        return next_cycle(snapshot)

    def decided(self, snapshot: Facts, plan: Cycle) -> None:
        """Whatever makes room wakes it while places are missing."""
        self.context.fleet.unschedulable(self.claim.item, any(step.short for step in plan.told))

    async def alert(self, snapshot: Facts, plan: Cycle) -> float | None:
        """A service that waits for a person, or makes no progress."""
        return await self._alarms.tell(snapshot, plan)

    def describe(self, snapshot: Facts, plan: Cycle) -> DeploymentStatus:
        """The phase, and each service in numbers."""
        self.kind.phases.see(self.claim.item, report.phase(snapshot))
        return report.status(snapshot, plan, self.context.farm, self.context.clock.now())

    def obstructed(self, reason: str) -> DeploymentStatus:
        """The status of a blocked deployment, with the last known states of its services."""
        known = self.status.known
        told = known if isinstance(known, DeploymentStatus) else DeploymentStatus(state="blocked")
        return replace(told, state="blocked", reason=reason)

    # -- writing ---------------------------------------------------------------------------------
    async def act(self, snapshot: Facts, plan: Cycle) -> Outcome:
        """The transactions of one cycle; what was read is planned from the start afterwards."""
        if plan.action == "begin":
            return await self._begin(snapshot)
        if plan.action == "end":
            return await self._end(snapshot, plan)
        if plan.action == "volumes":
            return await self._volumes(snapshot, plan)
        outcome = GO_ON
        for step in plan.steps:
            sight = snapshot.sights[step.service]
            try:
                found = await self._step(snapshot, sight, step)
            except deploy_writes.TurnRefused as error:
                await self.block(f"{sight.said.name}: {error.message}")
                found = Outcome("blocked", LOOK_AGAIN_SECONDS, error.message)
            if found.result == "rejected":
                return found
            if found.result != "after" or found.after:
                outcome = found
        return outcome

    async def _begin(self, reading: Facts) -> Outcome:
        record, state = reading.stored.record, deploy_writes.noted(self.context, self.claim.item, begun=True)
        return await self.turn(record, "begin", record.reason, state)

    async def _volumes(self, reading: Facts, plan: Cycle) -> Outcome:
        notes = VolumeNotes(self.context, reading)
        for each in plan.volumes:
            await each.execute(notes)
        made = "; ".join(map(str, plan.volumes))
        done = await self.turn(reading.stored.record, "volumes", made, *notes.writes())
        self._count("volume", "done", len(plan.volumes))
        return done

    async def _step(self, reading: Facts, sight: ServiceFacts, step: ServiceStep) -> Outcome:
        """The changes of one service's step.

        Raises:
            TurnRefused: something stands in the way.
        """
        if step.turn == "pause":
            return await self._pause(reading, step)
        if sight.state is None and step.turn == "skip":
            found = deploy_writes.skip(self.context, reading, sight, step.reason)
            return await self._turned(reading, sight, "skip", step.reason, found)
        if sight.state is None:
            taken = await deploy_writes.take(self.context, reading, sight)
            return await self._turned(reading, sight, "take", "", taken)
        if step.turn in ("back", "skip"):
            if sight.state.phase == "taken":
                back = await deploy_writes.back(self.context, reading, sight, step.reason, _place(step))
            else:
                back = await deploy_writes.take_back(self.context, reading, sight, step.reason)
            return await self._turned(reading, sight, "back", step.reason, back)
        if step.turn == "release":
            released = await deploy_writes.release(self.context, reading, sight)
            await self._alarms.released(reading, sight)
            return await self._turned(reading, sight, "release", sight.state.failure, *released)
        return await self._pods(reading, sight, step)

    async def _pause(self, reading: Facts, step: ServiceStep) -> Outcome:
        record, why = reading.stored.record, f"{step.service}: {step.reason}"
        said = {"halted": why, "failed": _place(step), "resumed": record.resumed}
        state = deploy_writes.noted(self.context, self.claim.item, **said)
        return await self.turn(record, "halt", why, state)

    async def _turned(
        self,
        reading: Facts,
        sight: ServiceFacts,
        verb: str,
        why: str,
        writes: deploy_writes.Writes,
        services: Scalar = "",
    ) -> Outcome:
        """One service changes hands or direction. ``services``: others that named its owner."""
        after: dict[str, Scalar] = {"service": sight.said.name, "owner": sight.said.owner}
        before = {"services": services} if services else {}
        after |= {"services": ""} if services else {}
        return await self.turn(reading.stored.record, verb, why, *writes, before=before, after=after)

    async def _pods(self, reading: Facts, sight: ServiceFacts, step: ServiceStep) -> Outcome:
        """Pods come, go, or get their intents back."""
        context, record = self.context, reading.stored.record
        assert sight.owner is not None
        manifest = sight.manifest or await context.manifests.of(sight.owner.record)
        units, made = await changes.collected(context, sight, manifest, record.id, step)
        if (note := self._hooked(sight, made.hooked)) is not None:
            units = [together(units, note)]
        done = await self.move(
            reading.stored,
            sight.said.name,
            units,
            self._reader.freezes(reading.stored, sight.said, sight.state),
            standing=sum(len(context.fleet.pods(each)) for each in (sight.owner_id, sight.said.service)),
            checks=[*self._guards(sight, units), *made.bodies],
        )
        if done.result != "frozen":
            for op, many in changes.counted(units, made.hooked).items():
                self._count(op, "refused" if done.result == "rejected" else "done", many)
        return done

    def _count(self, op: str, result: str, many: int) -> None:
        self.context.recorder.count("farmd_deployment_operations_total", many, op=op, result=result)

    def _hooked(self, sight: ServiceFacts, placed: str) -> Note | None:
        """The state that records where the hook runs, or that it succeeded, with the change of its pod."""
        state, over = sight.state, sight.goal.hook == "done"
        if state is None or not (placed or (over and not state.hooked)):
            return None
        said = replace(state, hook=placed or state.hook, hooked=not placed, since=self.context.clock.now())
        write = deploy_writes.noted_goal(self.context, self.claim.item, sight.said.service, said)
        return Note(
            (write,), "deployment.hook", f"the hook of {sight.said.name}{'' if placed else ' is done'}"
        )

    def _guards(self, sight: ServiceFacts, units: list[NodeChanges]) -> list[Operation]:
        """The owner is as it was read, and nodes whose pods are given up are still given up (R21)."""
        assert sight.owner is not None
        leaving = [(c.node, c.instance) for unit in units for c in unit.changes if c.action == "remove"]
        own = operations.check_index(sight.owner.key, sight.owner.index)
        return [own, *self.context.placement.verdicts(leaving, sight.hooks, sight.pods)]

    async def _end(self, reading: Facts, plan: Cycle) -> Outcome:
        """Let go of the services that were not taken or were taken over, then delete the record, which is
        gone from then on.
        """
        record, goals = reading.stored.record, reading.state.goals
        free = [
            said
            for said in record.goals
            if said.superseded or said.service not in goals or goals[said.service].back
        ]
        for first in range(0, len(free), FREED_AT_ONCE):
            await self._free(record, free[first : first + FREED_AT_ONCE], plan.why)
        await self.status.incidents.end_all()
        after = {"services": len(record.goals)} | ({FAILED: " ".join(plan.failed)} if plan.failed else {})
        gone = self.kind.noun.records(self.context.client, self.context.keys).delete(reading.stored)
        lasted, recorder = self.context.clock.now() - record.at, self.context.recorder

        def over() -> None:
            recorder.observe("farmd_deployment_duration_seconds", lasted, result=plan.ending)

        reason = plan.why or record.reason
        await self.last_turn(record, plan.ending, reason, *gone, over=over, after=after)
        return Outcome("done")

    async def _free(self, record: Deployment, goals: Sequence[Goal], why: str) -> None:
        writes = []
        for said in goals:
            let_go = deploy_writes.handed_over if said.superseded else deploy_writes.freed
            writes += await let_go(self.context, record.id, said)
        if writes:
            await self.turn(record, "free", why, *writes)


def _place(step: ServiceStep) -> str:
    """The place of the pod because of which a service turns; empty: none failed."""
    return "/".join(step.failed or ())
