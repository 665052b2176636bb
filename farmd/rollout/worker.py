"""The worker of one rollout (p2 ``pkg/roll/update.go``): one transaction per cycle, then it reads again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import structlog

from farmd.farm.writer import Write
from farmd.rollout import membership, nodes, progress, report
from farmd.rollout import plan as planning
from farmd.rollout import writes as rollout_writes
from farmd.rollout.facts import Facts, Need, Plan, Reader, Snapshot, Turn
from farmd.rollout.gates import Ask, GateWatch
from farmd.rollout.report import RolloutAlerts
from farmd.runtime.wake import Wake
from farmd.work import model
from farmd.work.managing import ManagingKind, ManagingWorker
from farmd.work.model import Outcome
from farmd.work.worker import Fields
from store.entry import Stored
from store.locks import Claim
from store.operations import Operation
from store.rcs import failure_alert
from store.rollouts import KIND, History, Rollout, RolloutState, RolloutStatus
from store.sessions import Session

log = structlog.get_logger()


class RolloutWorker(ManagingWorker[Facts, Plan]):
    """Brings one rollout to its end while its claim lasts (seed ``Rollout``)."""

    __slots__ = ("_alarms", "_gates", "_reader")

    def __init__(
        self,
        kind: ManagingKind,
        claim: Claim,
        session: Session,
        wake: Wake,
        ask: Ask,
    ) -> None:
        super().__init__(kind, claim, session, wake)
        self._reader: Reader | None = None
        self._alarms = RolloutAlerts(self.status.incidents, self.context.clock, self.context.farm)
        self._gates = GateWatch(ask, self.context.clock, self.context.recorder, wake)

    # -- the frame's hooks -----------------------------------------------------------------------
    def detach(self) -> None:
        """Hear of nothing any more, and ask no gate."""
        super().detach()
        self._gates.stop()

    async def look(self, stored: Stored[Rollout]) -> Facts | Outcome:
        """The rollout, both controllers and their pods."""
        self.follow(stored.record)
        self._reader = self._reader or self._reading(stored.record)
        if (broken := self.illegible()) is not None:
            return await self.unreadable(*broken)
        return self._gated(await self._reader.read(stored))

    def _reading(self, rollout: Rollout) -> Reader:
        """What reads for this rollout, by what it changes."""
        guards = [self.context.guards[name] for name in (KIND, rollout.of) if name in self.context.guards]
        reads = nodes.NodeReader if nodes.over_nodes(rollout) else Reader
        return reads(self.claim.item, self.claim.session, self.context, guards)

    def _gated(self, reading: Facts) -> Facts:
        """The facts with the answers of the gates. The gates of the present stage are polled from now on."""
        shot = reading.snapshot
        gates = progress.goal(shot).gates if self._asks(shot) else ()
        state = shot.state or RolloutState(phase="moving")
        found = self._gates.hold(gates, (state.stage, state.reached))
        return dataclasses.replace(reading, snapshot=dataclasses.replace(shot, gates=found))

    def _asks(self, shot: Snapshot) -> bool:
        """Gates are asked from the first available new pod on, while it goes forward."""
        if shot.back or shot.state is None or shot.state.phase == "halted" or shot.new is None:
            return False
        return self._gates.asking or shot.state.phase == "baking" or shot.new.available > 0

    def decide(self, snapshot: Facts) -> Plan | model.Ask[Need]:
        """Pure (``plan.py``)."""
        return planning.decide(snapshot.snapshot)

    async def answer(self, snapshot: Facts, ask: model.Ask[Need]) -> Facts:
        """Read whether pods fit where they are, and get places for the others."""
        assert self._reader is not None
        return await self._reader.answer(snapshot, ask.need)

    def decided(self, snapshot: Facts, plan: Plan) -> None:
        """Whatever makes room wakes it while places are missing."""
        self.context.fleet.unschedulable(self.claim.item, bool(plan.moves.short))

    async def alert(self, snapshot: Facts, plan: Plan) -> float | None:
        """A version that failed, too few pods, and a wait that only people end."""
        if snapshot.snapshot.old is None or snapshot.snapshot.new is None:
            return None
        return await self._alarms.tell(snapshot.snapshot, plan)

    def describe(self, snapshot: Facts, plan: Plan) -> RolloutStatus:
        """The phase, and both sides in numbers."""
        found = report.status(snapshot.snapshot, plan, self.context.farm, self.context.clock.now())
        self.kind.phases.see(self.claim.item, "paused" if snapshot.stored.record.paused else found.phase)
        return found

    # -- writing ---------------------------------------------------------------------------------
    async def act(self, snapshot: Facts, plan: Plan) -> Outcome:
        """One transaction: a turn, or moves of pods."""
        if plan.turn is not None:
            return await self._change(snapshot, plan.turn, plan)
        assert self._reader is not None
        if membership.costly(snapshot.snapshot, plan.moves) and await self._reader.refresh(snapshot.snapshot):
            return Outcome("after", 0.0, "the states of the pods were read again")
        context, (source, target) = self.context, snapshot.snapshot.sides
        request = await self._reader.request((source if plan.moves.restores else target).rc)
        done = await self.move(
            snapshot.stored,
            self._why(snapshot),
            [rollout_writes.unit(snapshot, plan, request, context)],
            self._reader.freezes(snapshot.stored, back=snapshot.snapshot.back),
            standing=sum(len(side.pods) for side in snapshot.snapshot.sides),
            checks=[
                *rollout_writes.held(snapshot, self.claim),
                *context.placement.verdicts(
                    (move.source for move in plan.moves.moves if move.source is not None),
                    source.pods,
                    target.pods,
                ),
            ],
        )
        if done.result == "after":
            for move in (each for each in plan.moves.moves if each.way != "raise"):
                context.recorder.count("farmd_rollout_moves_total", way=move.way)
        return done

    def _why(self, reading: Facts) -> str:
        shot, rollout = reading.snapshot, reading.stored.record
        if shot.back:
            return f"back to {rollout.from_manifest[:12]}: {shot.state.cause if shot.state else ''}"
        return f"from {rollout.from_manifest[:12]} to {rollout.to_manifest[:12]}"

    async def _change(self, reading: Facts, turn: Turn, plan: Plan) -> Outcome:
        context, rollout = self.context, reading.stored.record
        if turn.action == "end":
            return await self._end(reading, turn, plan)
        back, told = reading.snapshot.back, report.audit_fields(turn)
        if reading.daemonset is not None:
            told |= {"to": str(progress.spread(dataclasses.replace(reading.snapshot, state=turn.state))[0])}
            writes = nodes.turn(reading, turn, context)
            return await self._turned(reading, turn, plan, writes, told)
        services = await rollout_writes.to_turn(context.client, context.keys, rollout, turn.action, back=back)
        services = await self._fitting(rollout, services)
        if services:
            told |= {"services": ",".join(sorted(each.record.name for each, _ in services))}
        writes = rollout_writes.turn(reading, turn, context, self.claim, services)
        return await self._turned(reading, turn, plan, writes, told)

    async def _turned(
        self, reading: Facts, turn: Turn, plan: Plan, writes: Sequence[Write | Operation], told: Fields
    ) -> Outcome:
        """Commit a turn, then log it and fire its alerts."""
        rollout = reading.stored.record
        done = await self.turn(rollout, turn.action, turn.reason, *writes, after=told)
        log.info("rollout.turned", item=rollout.id, name=rollout.name, action=turn.action, reason=turn.reason)
        self._time(reading.snapshot, turn, plan)
        if plan.fault:
            await self._alarms.failed(rollout, plan.fault)
        return done

    async def _fitting(self, rollout: Rollout, services: rollout_writes.Changes) -> rollout_writes.Changes:
        """The changes that have room in the transaction of a turn; those before them are written now."""
        while len(services) > rollout_writes.MOST_CHANGED:
            first, services = services[: rollout_writes.MOST_CHANGED], services[rollout_writes.MOST_CHANGED :]
            names = ",".join(sorted(each.record.name for each, _ in first))
            writes = rollout_writes.written(self.context.client, self.context.keys, first)
            await self.turn(rollout, "services", "", *writes, after={"services": names})
        return services

    def _time(self, shot: Snapshot, turn: Turn, plan: Plan) -> None:
        """Observe how long a step took that this turn ends."""
        if shot.state is None or shot.state.phase == "halted":
            return
        result = "failed" if plan.fault else "reverted" if turn.outcome == "reverted" else "done"
        reached = turn.action in ("rest", "next", "end") and turn.outcome != "aborted"
        if plan.fault or reached:
            taken = shot.now - shot.state.since
            self.context.recorder.observe("farmd_rollout_step_duration_seconds", taken, result=result)

    async def _end(self, reading: Facts, turn: Turn, plan: Plan) -> Outcome:
        """The last transaction; before it the old side's pods are read, so that none is forgotten."""
        rollout = reading.stored.record
        if nodes.over_nodes(rollout):
            return await self._end_over_nodes(reading, turn, plan)
        await self.context.caches.pods.barrier([self.context.keys.pods(rc) for rc in self.followed])
        if self.context.fleet.pods(rollout_writes.goes(rollout, turn.outcome)):
            return Outcome("after", 0.0, "a pod of it is left")
        known = (await History(self.context.client, self.context.keys).read(rollout.name)).items
        if turn.outcome == "reverted" and not rollout.wish:
            await self._alarms.failed(rollout, turn.reason)
        outcomes = [each.record.outcome for each in known]
        over = self._alarms.left_open(rollout, turn.outcome, outcomes, rollout_writes.old(reading).name)
        stay = reading.records.keys() - {rollout_writes.goes(rollout, turn.outcome)}
        client, keys = self.context.client, self.context.keys
        services = await rollout_writes.to_end(client, keys, rollout, turn.outcome, stay)
        services = await self._fitting(rollout, services)
        writes = rollout_writes.end(reading, turn, self.context, known, services, over)
        # The controller that stays reports the incidents, and when they end.
        await self._ended(reading, turn, plan, writes, self.status.incidents.open() if stay else ())
        return Outcome("done")

    async def _end_over_nodes(self, reading: Facts, turn: Turn, plan: Plan) -> Outcome:
        """Commit the last transaction of a rollout over nodes. If its version failed, the daemon set's worker
        reports it.
        """
        rollout, incidents = reading.stored.record, self.status.incidents
        known = (await History(self.context.client, self.context.keys, rollout.of).read(rollout.name)).items
        failed = turn.outcome == "reverted" and not rollout.wish
        passed = set(incidents.open()) & {failure_alert(rollout.name)} if failed else ()
        await self._ended(reading, turn, plan, nodes.end(reading, turn, self.context, known), passed)
        await incidents.end_all()
        return Outcome("done")

    async def _ended(
        self,
        reading: Facts,
        turn: Turn,
        plan: Plan,
        writes: Sequence[Write | Operation],
        passed: Iterable[str],
    ) -> None:
        """Delete the record; incidents that are ``passed`` on stay open, another worker keeps them."""
        rollout = reading.stored.record

        def over() -> None:
            for key in passed:
                self.status.incidents.pass_on(key)
            self._time(reading.snapshot, turn, plan)

        await self.last_turn(
            rollout,
            turn.outcome,
            turn.reason,
            *writes,
            over=over,
            before={"from": rollout.from_manifest[:12]},
            after={"to": rollout.to_manifest[:12]},
        )
        log.info(
            "rollout.ended", item=rollout.id, name=rollout.name, outcome=turn.outcome, reason=turn.reason
        )
