"""The worker of one daemon set (p2 ``pkg/ds/daemon_set.go``).

New nodes and changed ones wake it; a converged daemon set owns no timer. It tells people of two troubles by
low alerts: while it contends with another for nodes (p2's incident key, and the daemon set's id, so that the
end of one contention is not taken for the end of another's), and while no node is eligible, under its id.
"""

from __future__ import annotations

from alerting.alert import PREEMPTIVE_DS_CONTENTION
from farmd.daemonset import plan as planning
from farmd.daemonset.model import Need, Plan
from farmd.daemonset.reader import Reader, Reading
from farmd.pods.changes import grouped, planned, reservations
from farmd.work.model import Ask
from farmd.work.owner import OwnerWorker, Units
from store.pods import Pod
from store.status import Status


class DaemonSetWorker(OwnerWorker[Reading, Plan]):
    """Keeps one daemon set converged while its claim lasts (seed ``DaemonSet``)."""

    __slots__ = ()

    reader: Reader

    def decide(self, snapshot: Reading) -> Plan | Ask[Need]:
        """Pure (``plan.py``)."""
        return planning.decide(snapshot.snapshot)

    def decided(self, snapshot: Reading, plan: Plan) -> None:
        """A plan that changes nothing has taken in all that the record says."""
        super().decided(snapshot, plan)
        if plan.empty or plan.contended:
            self.reader.settled = self.index

    def state(self, reading: Reading, plan: Plan) -> Status:
        """How many nodes have a pod, of those that should."""
        return planning.status(reading.snapshot, plan, self.context.farm, self.context.clock.now())

    # -- alerts ----------------------------------------------------------------------------------
    async def alert(self, snapshot: Reading, plan: Plan) -> None:
        """Contention, and no eligible node."""
        daemonset, contention = snapshot.stored.record, snapshot.snapshot.contention
        nowhere = plan.blocked.text if plan.blocked is not None and plan.blocked.code == "nowhere" else ""
        about = {"pod_id": daemonset.pod_id, "node_selector": daemonset.node_selector}
        name, key = f"daemonset {daemonset.name!r}", f"{PREEMPTIVE_DS_CONTENTION}_{self.claim.item}"
        await self.tell(key, contention and f"{name} {contention}; it is held back", **about)
        await self.tell(self.claim.item, nowhere and f"{name}: {nowhere}", **about)

    # -- execute ---------------------------------------------------------------------------------
    async def units(self, reading: Reading, plan: Plan) -> Units:
        """Each pod by itself; a replaced one is as old as its replacement: the pace is kept by it."""
        request = reading.request or await self.reader.request(reading.stored.record)
        new = Pod(reading.stored.record.manifest, dict(request.labels), self.context.clock.now())
        changes = list(planned(reading.stored.record, plan, reading.snapshot.pods, new))
        return grouped(((change,) for change in changes), reservations(request, changes, reading.view)), ()
