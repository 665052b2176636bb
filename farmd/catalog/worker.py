"""The worker of one service, which keeps its entries in the catalogue as its endpoints are.

What must never break: nothing is removed for doubt (R18, R20), and each write checks the claim, the service's
record and what stands in the catalogue (R12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farmd.catalog import plan as planning
from farmd.catalog.asked import asks
from farmd.catalog.model import Change, Plan, Snapshot
from farmd.catalog.shared import Follower, Shared
from farmd.runtime.wake import Wake
from farmd.services.board import Doubt, Sightings
from farmd.work.kind import Kind
from farmd.work.model import Outcome
from farmd.work.worker import Worker
from store import catalog
from store.errors import AccessDenied, RecordInvalid, TransactionRejected
from store.families import SERVICES
from store.locks import Claim
from store.operations import Operation
from store.services import Service
from store.sessions import Session
from store.status import ItemStatus, Status

DOUBT_SECONDS = 1.0
MOST_BYTES = 300 * 1024
RULES = "acl/farm-catalog.hcl has the rules"


def fitting(
    changes: Sequence[Change], cluster: str, nodes: Mapping[str, catalog.Node], room: int
) -> tuple[list[Change], list[Operation]]:
    """The first changes that fit into one transaction, and their operations."""
    some, sent, size = list[Change](), list[Operation](), 0
    for change in changes:
        more = change.operations(cluster, nodes.get(change.after.node) if change.after is not None else None)
        size += sum(operation.size() for operation in more)
        if some and (len(sent) + len(more) > room or size > MOST_BYTES):
            break
        some.append(change)
        sent += more
    return some, sent


def explained(error: AccessDenied) -> AccessDenied:
    """A denial of the catalogue with the policy that allows it."""
    return AccessDenied(f"{error.message}; {RULES}", **error.fields)


class ServiceWorker(Worker[Snapshot, Plan]):
    """Keeps the entries of one service."""

    __slots__ = ("_shared", "_sightings")

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake, shared: Shared) -> None:
        super().__init__(kind, claim, session, wake)
        self._shared = shared
        context = self.context
        self._sightings = Sightings(
            context.client, context.keys, context.caches, context.fleet, shared.running, context.clock
        )

    @property
    def key(self) -> str:
        """The key of the service's record."""
        return self.context.keys.record(SERVICES.name, self.claim.item)

    def called(self) -> str:
        """The service's name."""
        stored = self._shared.tree.get(self.key)
        return super().called() if stored is None else stored.record.name

    def attach(self) -> None:
        self._shared.join(self.claim.item, Follower(self.wake, self._sightings))

    def detach(self) -> None:
        if self.writer.unsettled:  # it was cancelled in the middle of a write
            self._shared.view.expire()
        self._shared.leave(self.claim.item)
        self._sightings.close()

    async def reread(self) -> None:
        """Read the record and the catalogue again, after a write whose outcome is unknown (R12)."""
        await self._shared.tree.barrier([self.key])
        self._shared.view.expire()

    async def read(self) -> Snapshot | Outcome:
        """The service, its pods, and its entries. Doubt about the pods leaves the entries as they are."""
        stored = self.stored(self._shared.tree)
        if isinstance(stored, RecordInvalid):
            return await self.unreadable(stored, "the service's record")
        if stored is None or not asks(stored.record):
            return await self.gone()
        context, view = self.context, self._shared.view
        await view.fresh()
        try:
            seen, after = await self._sightings.look(stored.record, self.wake)
        except Doubt as error:
            return Outcome("after", DOUBT_SECONDS, error.message)
        standing = view.of(self.claim.item)
        pods = planning.pods(context.cluster, self.claim.item, seen, standing, self._new(stored.record))
        return Snapshot(context.cluster, stored.record, pods, standing, view.nodes, after)

    def _new(self, service: Service) -> set[str]:
        """The owners whose version is to take another's place, while both serve."""
        active = {ref.partition("/")[2]: ref for ref in service.active}
        pairs = ((each.record.old, each.record.new) for each in self._shared.switching())
        return {active[new] for old, new in pairs if {old, new} <= active.keys()}

    def decide(self, snapshot: Snapshot) -> Plan:
        """Pure (``plan.py``)."""
        return planning.decide(snapshot)

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """From an empty plan on, what differs is another's doing. Others' nodes may be free the next time."""
        if plan.foreign:
            self._shared.view.doubt(plan.foreign)
        settled = self._shared.view.settled
        (settled.add if plan.empty else settled.discard)(self.claim.item)

    async def act(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """Write what fits into one transaction; the next cycle writes the rest."""
        view, stands = self._shared.view, self.stands()
        room = self.writer.client.most_operations - len(self.claim.fence()) - len(stands) - 1
        some, sent = fitting(plan.changes, snapshot.cluster, snapshot.nodes, room)
        words = [change.word for change in some]
        counts = {word: words.count(word) for word in sorted(set(words))}
        told = self.audit(
            "catalog.write", "the endpoints differ", after={**counts}, name=snapshot.service.name
        )
        try:
            index = await self.writer.commit(*stands, *sent, told)
        except TransactionRejected:
            view.doubt(change.after.node for change in some if change.after is not None)
            raise
        except AccessDenied as error:
            raise explained(error) from error
        view.apply(some, index)
        for word, count in counts.items():
            self.context.recorder.count("farmd_catalog_changes_total", count, change=word)
        return Outcome("after", 0.0)

    def describe(self, snapshot: Snapshot, plan: Plan) -> ItemStatus:
        """How many entries there are and how many of them pass, or what prevents the rest."""
        passing = sum(pod.passing for pod in snapshot.pods)
        return Status(
            state="blocked" if plan.blocked is not None else "converged",
            reason=plan.blocked.text if plan.blocked is not None else "",
            name=snapshot.service.name,
            farm=self.context.farm,
            since=self.context.clock.now(),
            desired=len(snapshot.pods),
            placed=len(snapshot.standing),
            healthy=passing,
        )
