"""Daemon sets as a kind of work, and their worker."""

from __future__ import annotations

from alerting.alert import PREEMPTIVE_DS_CONTENTION
from farmd.daemonset import plan as planning
from farmd.daemonset.facts import Facts, Need, Plan, Reader, by_version
from farmd.daemonset.rivals import Rivals
from farmd.pods.ailing import AILING_SECONDS, ailing_since, told
from farmd.pods.changes import PodChange, grouped, planned, reservations
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.model import Ask
from farmd.work.owned import Units
from farmd.work.owner import ReplicaKind, ReplicaWorker
from scheduler.ledger import Reservation
from store.daemonsets import KIND
from store.locks import Claim
from store.pods import Place, Pod
from store.ports import Recorder
from store.rcs import failure_alert
from store.sessions import Session
from store.status import Status

# The worker of one daemon set (p2 ``pkg/ds/daemon_set.go``).
#
# New and changed nodes wake it; a converged daemon set owns no timer. It fires three low alerts: for
# contention with another daemon set (p2's incident key with the daemon set's id, so that the end of one
# contention does not resolve another's), while no node is eligible (its id), and for pods that go on failing
# their check.


class DaemonSetWorker(ReplicaWorker[Facts, Plan]):
    """Keeps one daemon set converged while its claim lasts (seed ``DaemonSet``)."""

    __slots__ = ()

    kind: DaemonSets
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
    def detach(self) -> None:
        """Undo ``attach``, and count the daemon set in no metric."""
        super().detach()
        self.kind.ailing.discard(self.claim.item)

    async def alert(self, snapshot: Facts, plan: Plan) -> float | None:
        """Alert of contention, of no eligible node, and of pods that fail their check."""
        daemonset, contention = snapshot.stored.record, snapshot.snapshot.contention
        nowhere = plan.blocked.text if plan.blocked is not None and plan.blocked.code == "nowhere" else ""
        about = {"pod_id": daemonset.pod_id, "node_selector": daemonset.node_selector}
        name, key = f"daemonset {daemonset.name!r}", f"{PREEMPTIVE_DS_CONTENTION}_{self.claim.item}"
        await self.tell(key, contention and f"{name} {contention}; it is held back", **about)
        await self.tell(failure_alert(daemonset.name), daemonset.failed)
        await self.tell(self.claim.item, nowhere and f"{name}: {nowhere}", **about)
        return await self._alert_of_ailing(snapshot)

    async def _alert_of_ailing(self, reading: Facts) -> float | None:
        """Keep one alert open from when a pod failed its check for too long until all pods are healthy;
        returns the seconds until time alone changes that.

        A daemon set has no other place for such a pod, so somebody must look.
        """
        snapshot, item = reading.snapshot, self.claim.item
        key, open_now = f"daemonset_ailing_{item}", self.status.incidents
        pods = {} if reading.request is None or snapshot.daemonset.taken else snapshot.kept
        since = ailing_since(pods)
        if any(snapshot.now - at >= AILING_SECONDS for at in since.values()):
            await self.tell(
                key, await self._ailment(reading, min(since, key=lambda place: (since[place], place)))
            )
        elif all(state.healthy for state in pods.values()):
            await open_now.end(key)
        (self.kind.ailing.add if key in open_now else self.kind.ailing.discard)(item)
        later = [at + AILING_SECONDS - snapshot.now for at in since.values()]
        return min((left for left in later if left > 0), default=None)

    async def _ailment(self, reading: Facts, place: Place) -> str:
        """What ails the pod, what was tried, and what a person can do."""
        daemonset, pod = reading.stored.record, "/".join(place)
        text = await told(self.context.client, self.context.keys, place, reading.snapshot.pods)
        check = reading.request.manifest.health if reading.request is not None else None
        tried = "nothing restarts it, because unhealthy_after and health.restart_after are 0"
        if check is not None and check.restart_after:
            tried = f"its agent restarts it after {check.restart_after:g} s (health.restart_after)"
        elif daemonset.unhealthy_after:
            tried = f"it is restarted after {daemonset.unhealthy_after:g} s (unhealthy_after)"
        do = f"farmctl pod logs {pod}; farmctl pod restart {pod}"
        return f"daemonset {daemonset.name!r}: {text}; {tried}; {do}"

    # -- execute ---------------------------------------------------------------------------------
    async def units(self, reading: Facts, plan: Plan) -> Units:
        """One change for each pod. A replaced pod gets a new age, because the pace counts by it."""
        request = reading.request or await self.reader.request(reading.stored.record)
        changes, reserved = list[PodChange](), dict[str, Reservation]()
        for (record, part), asked in zip(
            by_version(reading.snapshot, plan), (request, reading.coming or request), strict=True
        ):
            new = Pod(record.manifest, dict(asked.labels), self.context.clock.now())
            found = list(planned(record, part, reading.snapshot.pods, new))
            changes += found
            reserved |= reservations(asked, found, reading.view)
        return grouped(((change,) for change in changes), reserved), ()


# Daemon sets as a kind of work.


class DaemonSets(ReplicaKind):
    """The kind ``daemonsets``."""

    name = KIND
    BUDGET_SPENT = "pods: daemon sets would remove more per minute than the budget allows"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rivals = Rivals(context)
        self.ailing: set[str] = set()

    def publish(self, recorder: Recorder) -> None:
        """Write the metrics of all owners, and of daemon sets whose pods fail their check."""
        super().publish(recorder)
        recorder.set("farmd_daemonsets_ailing", len(self.ailing))

    def worker(self, claim: Claim, session: Session, wake: Wake) -> DaemonSetWorker:
        """A worker for one daemon set."""
        reader = Reader(self, claim.item, self._rivals)
        return DaemonSetWorker(self, claim, session, wake, reader)
