"""Daemon sets as a kind of work, and their worker."""

from __future__ import annotations

from alerting.alert import PREEMPTIVE_DS_CONTENTION
from farmd.daemonset import plan as planning
from farmd.daemonset.commands import DAEMON_SET
from farmd.daemonset.facts import Facts, Need, Plan, Reader, Rivals
from farmd.pods.changes import grouped, planned, reservations
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.model import Ask
from farmd.work.owned import Units
from farmd.work.owner import ReplicaKind, ReplicaWorker
from store.daemonsets import KIND
from store.locks import Claim
from store.pods import Pod
from store.sessions import Session
from store.status import Status

# The worker of one daemon set (p2 ``pkg/ds/daemon_set.go``).
#
# New and changed nodes wake it; a converged daemon set owns no timer. It fires two low alerts: for
# contention with another daemon set (p2's incident key with the daemon set's id, so that the end of one
# contention does not resolve another's), and while no node is eligible (its id).


class DaemonSetWorker(ReplicaWorker[Facts, Plan]):
    """Keeps one daemon set converged while its claim lasts (seed ``DaemonSet``)."""

    __slots__ = ()

    reader: Reader

    def decide(self, snapshot: Facts) -> Plan | Ask[Need]:
        return planning.decide(snapshot.snapshot)

    def decided(self, snapshot: Facts, plan: Plan) -> None:
        """Note that the record is taken in, once a plan changes nothing."""
        super().decided(snapshot, plan)
        if plan.empty or plan.contended:
            self.reader.settled = self.index

    def describe(self, snapshot: Facts, plan: Plan) -> Status:
        """How many nodes have a pod, of those that should."""
        return planning.status(snapshot.snapshot, plan, self.context.farm, self.context.clock.now())

    # -- alerts ----------------------------------------------------------------------------------
    async def alert(self, snapshot: Facts, plan: Plan) -> None:
        """Alert of contention, and of no eligible node."""
        daemonset, contention = snapshot.stored.record, snapshot.snapshot.contention
        nowhere = plan.blocked.text if plan.blocked is not None and plan.blocked.code == "nowhere" else ""
        about = {"pod_id": daemonset.pod_id, "node_selector": daemonset.node_selector}
        name, key = f"daemonset {daemonset.name!r}", f"{PREEMPTIVE_DS_CONTENTION}_{self.claim.item}"
        await self.tell(key, contention and f"{name} {contention}; it is held back", **about)
        await self.tell(self.claim.item, nowhere and f"{name}: {nowhere}", **about)

    # -- execute ---------------------------------------------------------------------------------
    async def units(self, reading: Facts, plan: Plan) -> Units:
        """One change for each pod. A replaced pod gets a new age, because the pace counts by it."""
        request = reading.request or await self.reader.request(reading.stored.record)
        new = Pod(reading.stored.record.manifest, dict(request.labels), self.context.clock.now())
        changes = list(planned(reading.stored.record, plan, reading.snapshot.pods, new))
        return grouped(((change,) for change in changes), reservations(request, changes, reading.view)), ()


# Daemon sets as a kind of work.


class DaemonSets(ReplicaKind):
    """The kind ``daemonsets``."""

    name = KIND
    noun = DAEMON_SET
    BUDGET_SPENT = "pods: daemon sets would remove more per minute than the budget allows"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rivals = Rivals(context)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> DaemonSetWorker:
        """A worker for one daemon set."""
        reader = Reader(self, claim.item, self._rivals)
        return DaemonSetWorker(self, claim, session, wake, reader)
