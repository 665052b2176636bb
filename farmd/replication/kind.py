"""Replication controllers as a kind of work, and their worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from farmd.commands.specs import changed
from farmd.farm.writer import Write
from farmd.replication import healing, writes
from farmd.replication import plan as planning
from farmd.replication.facts import Facts, Moves, MoveStep, Need, Plan, Reader, Snapshot
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.model import Ask, Outcome
from farmd.work.owned import Units
from farmd.work.owner import ReplicaKind, ReplicaWorker
from store.consul.client import ConsulClient
from store.entry import Stored
from store.features import ONE_SHOT
from store.keys import Keys
from store.locks import Claim, Locker, ReplicationControllerLocker
from store.pods import Place, Pod
from store.rcs import KIND, failure_alert
from store.rcs import ReplicationController as Controller
from store.sessions import Session
from store.status import Status

# The worker of one replication controller (p2 ``pkg/rc/replication_controller.go``).
#
# It fires two low alerts: while there are not enough eligible nodes (p2's incident key: the RC's id), and
# while moves of its pods fail.

CONTENDED_SECONDS = 30.0


class ReplicationController(ReplicaWorker[Facts, Plan]):
    """Keeps one RC converged while its claim lasts (seed ``ReplicationController``)."""

    __slots__ = ("_contended_since", "_left_open", "_moves")

    def __init__(self, kind: ReplicaKind, claim: Claim, session: Session, wake: Wake, moves: Moves) -> None:
        reader = Reader(kind, claim.item, moves, wake)
        super().__init__(kind, claim, session, wake, reader)
        self._moves = moves
        self._contended_since: float | None = None
        self._left_open: dict[str, str] = {}
        work = self.context.caches.work.get(self.context.keys.work(kind.name, claim.item))
        if work is not None and work.record.transfer_failures:
            # An earlier owner fired the alert, perhaps without time to write it into the status.
            self.status.incidents.inherit(self._transfer)

    @property
    def _transfer(self) -> str:
        """The incident key of moves that fail."""
        return f"transfer_{self.claim.item}"

    def detach(self) -> None:
        """Undo ``attach``, and wait for no turn to move a pod."""
        super().detach()
        self._moves.forget(self.claim.item)

    async def cycle(self) -> Outcome:
        """Run a cycle, then give back the turn to start a move: a started move is known by its note."""
        try:
            return await super().cycle()
        finally:
            self._moves.leave(self.claim.item)

    def current_pods(self) -> Mapping[Place, Stored[Pod]]:
        """The RC's pods by place, as this farm last read them (p2 ``CurrentPods``)."""
        return self.context.fleet.pods(self.claim.item)

    def decide(self, snapshot: Facts) -> Plan | Ask[Need]:
        return planning.decide(snapshot.snapshot)

    async def answer(self, snapshot: Facts, ask: Ask[Need]) -> Facts:
        """The answer; contention with other workers of this process is waited for only a while (R17)."""
        reading = await super().answer(snapshot, ask)
        offer, now = reading.snapshot.offer, self.context.clock.mono()
        if not offer.contended:
            self._contended_since = None
        elif self._contended_since is None:
            self._contended_since = now
        elif now - self._contended_since > CONTENDED_SECONDS:
            patient = dataclasses.replace(offer, contended=False)
            return dataclasses.replace(reading, snapshot=dataclasses.replace(reading.snapshot, offer=patient))
        return reading

    def describe(self, snapshot: Facts, plan: Plan) -> Status:
        """How many pods there are, of those that should be."""
        return planning.status(snapshot.snapshot, plan, self.context.farm, self.context.clock.now())

    # -- execute ---------------------------------------------------------------------------------
    async def act(self, snapshot: Facts, plan: Plan) -> Outcome:
        """Change pods, or delete the record; before that, keep older farms from it where they would run
        again what ended well (R11).
        """
        if not plan.marks:
            return await super().act(snapshot, plan)
        stored = snapshot.stored
        record = changed(stored.record, needs=[*stored.record.needs, ONE_SHOT])
        write = Write.over(stored.key, record, stored, self.kind.tree)
        why = "a pod ended successfully, and older farms would run it again"
        audit = self.audit("rc.needs", why, after={"needs": ONE_SHOT}, name=record.name)
        await self.writer.commit(write, audit)
        return Outcome("after", 0.0, why)

    async def units(self, reading: Facts, plan: Plan) -> Units:
        """The changes of pods, or one step of a move (``writes.py``)."""
        request = await self.reader.request(reading.stored.record)
        return await writes.units(reading, plan, request, self.context)

    async def refused(self, reading: Facts, plan: Plan) -> None:
        """After a rejected step, read what is at the place that the move goes to."""
        if plan.step is not None:
            await self.context.placement.reread_intent(*plan.step.new)

    async def done(self, reading: Facts, plan: Plan) -> None:
        """Alert of a move that failed, with what people can do; resolve the alert when a move succeeds."""
        step: MoveStep | None = plan.step
        if step is not None and step.action == "finish":
            await self.status.incidents.end(self._transfer)
        elif step is not None and step.action == "rollback":
            old, new = "/".join(step.old), "/".join(step.new)
            await self.tell(
                self._transfer,
                f"{reading.stored.record.name}: moving {old} to {new} failed: {step.reason}; it was taken"
                f" back and is tried again later. Look at the pod on {step.new[0]}, cordon {step.new[0]} if"
                f" the node is to blame, or let {step.old[0]} keep its pod",
            )

    # -- alerts ----------------------------------------------------------------------------------
    async def alert(self, snapshot: Facts, plan: Plan) -> None:
        """Alert of a pod that should move and has no place, of too few eligible nodes, and of the version
        that failed last.
        """
        found, rc, offer = snapshot.snapshot, snapshot.stored.record, snapshot.snapshot.offer
        await self._end_left_open(snapshot.stored)
        await self.tell(failure_alert(rc.name), rc.failed)
        missing = bool(offer.missing) and not offer.contended
        if offer.purpose == "transfer" and missing:
            await self.tell(
                self._transfer,
                f"{rc.name}: a pod should move, but there is no place for it: {offer.why}. Add room, or let"
                " its node keep it",
            )
        elif not offer.missing and not _moves_on(found):
            await self.status.incidents.end(self._transfer)
        if missing and offer.purpose != "transfer" and not rc.disabled:
            text = f"{rc.name}: not enough eligible nodes: {offer.why}"
            await self.tell(self.claim.item, text, pod_id=rc.pod_id, node_selector=rc.node_selector)
        else:
            await self.status.incidents.end(self.claim.item)

    async def _end_left_open(self, stored: Stored[Controller]) -> None:
        """End the alerts that its last manager left open. An earlier owner that saw this very record ended
        them, too: what was not delivered then is in the status.
        """
        known, rc, incidents = self.status.known, stored.record, self.status.incidents
        seen = known is not None and known.record == stored.index
        if seen or rc.managed_by or rc.left_open == self._left_open:
            return
        self._left_open = rc.left_open
        for key, urgency in rc.left_open.items():
            if rc.failed and key == failure_alert(rc.name):
                continue
            incidents.inherit(key)
            await incidents.end(key, "high" if urgency == "high" else "low")


def _moves_on(snapshot: Snapshot) -> bool:
    """Whether a move is under way, delayed, or due."""
    if snapshot.transfer is not None or snapshot.now < snapshot.not_before:
        return True
    return healing.candidate(snapshot) is not None


# Replication controllers as a kind of work.


class Replication(ReplicaKind):
    """The kind ``rcs``."""

    name = KIND
    BUDGET_SPENT = "pods: more replacements in a minute than the removal budget allows"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._moves = Moves(context.caches, context.keys, context.settings.max_transfers)

    def locker(self, client: ConsulClient, keys: Keys) -> Locker:
        """As ``Kind.locker``."""
        return ReplicationControllerLocker(client, keys)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> ReplicationController:
        """A worker for one RC."""
        return ReplicationController(self, claim, session, wake, self._moves)
