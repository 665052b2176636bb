"""The workers of the catalogue: one for each service, and one for entries that no service asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farmd.catalog import plan as planning
from farmd.catalog.facts import Follower, Plan, Shared, Snapshot
from farmd.runtime.wake import Wake
from farmd.services.board import Doubt, Sightings
from farmd.work.kind import Kind
from farmd.work.model import Outcome
from farmd.work.worker import P, S, Worker
from store import catalog, operations, presence
from store.cache import PrefixCache
from store.catalog import Change, Node, Standing
from store.errors import AccessDenied, RecordInvalid, TransactionRejected
from store.families import SERVICES
from store.locks import Claim
from store.operations import Operation
from store.services import Catalog, Service
from store.sessions import Session
from store.status import ItemStatus, Status

# The worker of one service, which keeps its entries in the catalogue as its endpoints are.
#
# What must never break: nothing is removed for doubt (R18, R20), and each write checks the claim, the
# service's record and what stands in the catalogue (R12).

DOUBT_SECONDS = 1.0
CONTESTED_SECONDS = 1.0
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


def _ident(change: Change) -> str:
    """The id of the entry that a change is of."""
    entry = change.after or change.before
    assert entry is not None
    return entry.service.id


def explained(error: AccessDenied) -> AccessDenied:
    """A denial with the missing rules of the token, which Consul does not always name."""
    lacks = dict.fromkeys(filter(None, map(catalog.rule, error.fields.get("keys", ()))))
    told = f": the token lacks {' and '.join(lacks)}" if lacks else ""
    return AccessDenied(f"{error.message}{told}; {RULES}", **error.fields)


class CatalogWorker(Worker[S, P]):
    """What both workers do: read again what may be otherwise, and write."""

    __slots__ = ("_shared",)

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake, shared: Shared) -> None:
        super().__init__(kind, claim, session, wake)
        self._shared = shared

    async def reread(self) -> None:
        """Read the catalogue again, after a write whose outcome is unknown (R12)."""
        self._shared.view.expire()

    async def commit(self, changes: Sequence[Change], *writes: Operation) -> Outcome:
        """Write changes in one transaction with what makes them right, show them at once, and count them."""
        view = self._shared.view
        try:
            index = await self.writer.commit(*writes)
        except TransactionRejected:
            view.doubt(change.after.node for change in changes if change.after is not None)
            raise
        except AccessDenied as error:
            raise explained(error) from error
        view.apply(changes, index)
        for change in changes:
            self.context.recorder.count("farmd_catalog_changes_total", 1, change=change.word)
        return Outcome("after", 0.0)


class ServiceWorker(CatalogWorker[Snapshot, Plan]):
    """Keeps the entries of one service."""

    __slots__ = ("_contested", "_sightings")

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake, shared: Shared) -> None:
        super().__init__(kind, claim, session, wake, shared)
        # Entries that somebody else changed between read and write, the last refused one at the end.
        self._contested: dict[str, None] = {}
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
        """Read the record again, too."""
        await self._shared.tree.barrier([self.key])
        await super().reread()

    async def read(self) -> Snapshot | Outcome:
        """The service, its pods, and its entries. Doubt about the pods leaves the entries as they are."""
        stored = self.stored(self._shared.tree)
        if isinstance(stored, RecordInvalid):
            return await self.unreadable(stored, "the service's record")
        service = None if stored is None else self._shared.wish(stored.record)
        if service is None:
            return await self.gone()
        context, view = self.context, self._shared.view
        await view.fresh()
        try:
            seen, after = await self._sightings.look(service, self.wake)
        except Doubt as error:
            return Outcome("after", DOUBT_SECONDS, error.message)
        standing = view.of(self.claim.item)
        pods = planning.pods(context.cluster, self.claim.item, seen, standing, self._new(service))
        return Snapshot(context.cluster, service, pods, standing, view.nodes, after)

    def _new(self, service: Service) -> set[str]:
        """The owners with the new version during a rollout in which both versions serve."""
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
        """Write what fits into one transaction; the next cycle writes the rest.

        An entry that somebody else keeps changing is written alone, so that it holds up no other one.
        """
        stands = self.stands()
        room = self.writer.client.most_operations - len(self.claim.fence()) - len(stands) - 1
        some, sent = fitting(self._free(plan.changes), snapshot.cluster, snapshot.nodes, room)
        words = [change.word for change in some]
        counts = {word: words.count(word) for word in sorted(set(words))}
        told = self.audit(
            "catalog.write", "the endpoints differ", after={**counts}, name=snapshot.service.name
        )
        try:
            done = await self.commit(some, *stands, *sent, told)
        except TransactionRejected as error:
            nodes = snapshot.nodes
            refused = [
                each
                for each in some
                if error.refused(
                    each.operations(snapshot.cluster, nodes.get(each.after.node if each.after else ""))
                )
            ]
            if not refused:
                raise
            alone = len(some) == 1
            for ident in map(_ident, refused):
                self._contested.pop(ident, None)
                self._contested[ident] = None
            return Outcome("after", CONTESTED_SECONDS if alone else 0.0, error.message)
        for ident in map(_ident, some):
            self._contested.pop(ident, None)
        return done

    def _free(self, changes: Sequence[Change]) -> Sequence[Change]:
        """The uncontested changes; if there are none, the change that has waited longest."""
        by_id = {_ident(each): each for each in changes}
        first = [by_id[ident] for ident in self._contested if ident in by_id][:1]
        return [each for each in changes if _ident(each) not in self._contested] or first

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


class MembersWorker(ServiceWorker):
    """Keeps the entries of farmd's own processes: of all farms, or of all agents."""

    __slots__ = ()

    async def read(self) -> Snapshot | Outcome:
        """The present farms and agents, and the entries."""
        context, item = self.context, self.claim.item
        tree: PrefixCache[Any] = context.caches.farms if item == catalog.FARMS else context.caches.agents
        await self._shared.view.fresh()
        if not tree.ready.is_set() or tree.doubt is not None:
            return Outcome("after", DOUBT_SECONDS, tree.doubt or f"{item}: not read yet")
        present, absent = dict[str, tuple[str, str]](), {*map(context.keys.last_part, tree.broken)}
        for key, stored in tree.entries.items():
            name, record = context.keys.last_part(key), stored.record
            host = context.fleet.addresses.host(name) if item == catalog.AGENTS else ""
            present[name] = presence.at_host(record.address, host), record.version
        if item == catalog.AGENTS:
            absent |= {*map(context.keys.last_part, context.caches.nodes.entries)}
        standing = self._shared.view.of(item)
        pods = planning.members(context.cluster, item, present, absent, standing)
        service = Service(id=item, name=item, catalog=Catalog())
        return Snapshot(context.cluster, service, pods, standing, self._shared.view.nodes)


# The worker of what no service asks for: entries of services that are gone, and nodes that nothing uses.
#
# What must never break: an entry goes only if its service is proven not to ask for it (R20), by a check in
# the same transaction; so the entries of a service that was just made stay.

MOST = 20
LEFTOVERS_DOUBT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What goes in one transaction: some entries, with checks that nobody asks for them, or some nodes."""

    entries: tuple[Standing, ...] = ()
    checks: tuple[Operation, ...] = ()
    nodes: tuple[Node, ...] = ()
    blocked: None = None
    after: None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is left over."""
        return not (self.entries or self.nodes)


class LeftoverWorker(CatalogWorker[Leftovers, Leftovers]):
    """Removes what is left over."""

    __slots__ = ()

    def stands(self) -> Sequence[Operation]:
        """No checks: the item has no record."""
        return ()

    def attach(self) -> None:
        self._shared.sweeper = self.wake
        self._shared.view.wake.set()

    def detach(self) -> None:
        self._shared.sweeper = None
        self._shared.view.wake.set()

    async def read(self) -> Leftovers | Outcome:
        """What no service asks for, by records that were read after the entries."""
        view = self._shared.view
        if not self._shared.needed():
            view.expire()  # nobody follows it: other farms may have written since
        await view.fresh()
        asked = self._shared.asked
        left = sorted(
            service
            for service in view.services()
            if self._ours(service) and asked(service) is None and not self._shared.registered(service)
        )
        if left:
            await self._shared.tree.barrier(
                [self.context.keys.record(SERVICES.name, service) for service in left]
            )
            await self.context.caches.farms.barrier()
        if not self.kind.trusted():
            return Outcome("after", LEFTOVERS_DOUBT_SECONDS, "services: not proven")
        found, checks = list[Standing](), list[Operation]()
        for service in left:
            if (proof := self._proof(service)) is not None and len(found) < MOST:
                found += self._ours(service)[: MOST - len(found)]
                checks.append(proof)
        return Leftovers(tuple(found), tuple(checks), () if found else self._unused())

    def _ours(self, service: str) -> list[Standing]:
        """The entries of a service on nodes that are this cluster's alone."""
        view, cluster = self._shared.view, self.context.cluster
        nodes = {name for name, node in view.nodes.items() if catalog.owns(cluster, node)}
        return [each for each in view.of(service).values() if each.node in nodes]

    def _proof(self, service: str) -> Operation | None:
        """The check that a service does not ask for an entry; None: it asks, or its record does not
        decode (R10).
        """
        tree, key = self._shared.tree, self.context.keys.record(SERVICES.name, service)
        if key in tree.broken:
            return None
        stored = tree.get(key)
        if stored is None:
            return operations.check_not_exists(key)
        return None if self._shared.kept(stored.record) else operations.check_index(key, stored.index)

    def _unused(self) -> tuple[Node, ...]:
        """Nodes of the cluster's mark with nothing on them that no pod will come to."""
        context, view = self.context, self._shared.view
        known = {*context.caches.nodes.entries, *context.caches.agents.entries, *context.caches.agents.broken}
        kept = {catalog.node_name(context.cluster, context.keys.last_part(key)) for key in known}
        if self.kind.items().keys() == {self.claim.item}:
            kept = set()  # nobody asks for the catalogue any more
        return tuple(
            node
            for name, node in sorted(view.nodes.items())
            if name not in kept | view.used and catalog.owns(context.cluster, node)
        )[:MOST]

    def decide(self, snapshot: Leftovers) -> Leftovers:
        """All of it goes."""
        return snapshot

    async def act(self, snapshot: Leftovers, plan: Leftovers) -> Outcome:
        """Remove it; what does not fit goes in the next cycle."""
        gone = [catalog.delete_service(each.node, each.service) for each in plan.entries]
        gone += [catalog.delete_node(node) for node in plan.nodes]
        counts = {"removed": len(plan.entries), "nodes": len(plan.nodes)}
        told = self.audit("catalog.remove", "no service requests it", after={**counts})
        changes = [Change(each, None) for each in plan.entries]
        done = await self.commit(changes, *plan.checks, *gone, told)
        for node in plan.nodes:
            self._shared.view.removed(node.node)
        self._shared.view.expire()  # what is left on their nodes shows whether these go, too
        return done

    def describe(self, snapshot: Leftovers, plan: Leftovers) -> None:
        """No status, unless it is blocked."""
        return
