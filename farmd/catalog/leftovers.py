"""The worker of what no service asks for: entries of services that are gone, and nodes that nothing uses.

What must never break: an entry goes only if its service is proven not to ask for it (R20), by a check in the
same transaction; so the entries of a service that was just made stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farmd.catalog.asked import asks
from farmd.catalog.model import Change
from farmd.catalog.shared import Shared
from farmd.catalog.worker import explained
from farmd.runtime.wake import Wake
from farmd.work.kind import Kind
from farmd.work.model import Outcome
from farmd.work.worker import Worker
from store import catalog, operations
from store.catalog import Node, Standing
from store.errors import AccessDenied, TransactionRejected
from store.families import SERVICES
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session

MOST = 20
DOUBT_SECONDS = 5.0


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


class LeftoverWorker(Worker[Leftovers, Leftovers]):
    """Removes what is left over."""

    __slots__ = ("_shared",)

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake, shared: Shared) -> None:
        super().__init__(kind, claim, session, wake)
        self._shared = shared

    def stands(self) -> Sequence[Operation]:
        """No checks: the item has no record."""
        return ()

    def attach(self) -> None:
        self._shared.sweeper = self.wake
        self._shared.view.wake.set()

    def detach(self) -> None:
        self._shared.sweeper = None
        self._shared.view.wake.set()

    async def reread(self) -> None:
        """Read the catalogue again, after a write whose outcome is unknown (R12)."""
        self._shared.view.expire()

    async def read(self) -> Leftovers | Outcome:
        """What no service asks for, by records that were read after the entries."""
        view = self._shared.view
        await view.fresh()
        asked = self._shared.asked
        left = sorted(
            service for service, entries in view.services().items() if entries and asked(service) is None
        )
        if left:
            await self._shared.tree.barrier(
                [self.context.keys.record(SERVICES.name, service) for service in left]
            )
        if not self.kind.trusted():
            return Outcome("after", DOUBT_SECONDS, "services: not proven")
        found, checks = list[Standing](), list[Operation]()
        for service in left:
            if (proof := self._proof(service)) is not None and len(found) < MOST:
                found += list(view.of(service).values())[: MOST - len(found)]
                checks.append(proof)
        return Leftovers(tuple(found), tuple(checks), () if found else self._unused())

    def _proof(self, service: str) -> Operation | None:
        """The check that a service asks for nothing; None: it does, or nobody can tell (R10)."""
        tree, key = self._shared.tree, self.context.keys.record(SERVICES.name, service)
        if key in tree.broken:
            return None
        stored = tree.get(key)
        if stored is None:
            return operations.check_not_exists(key)
        return None if asks(stored.record) else operations.check_index(key, stored.index)

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

    async def act(self, snapshot: Leftovers, plan: Leftovers) -> Outcome:  # noqa: ARG002 - they are one
        """Remove it; what does not fit goes in the next cycle."""
        gone = [catalog.delete_service(each.node, each.service) for each in plan.entries]
        gone += [catalog.delete_node(node) for node in plan.nodes]
        counts = {"removed": len(plan.entries), "nodes": len(plan.nodes)}
        told = self.audit("catalog.remove", "no service asks for it", after={**counts})
        changes = [Change(each, None) for each in plan.entries]
        try:
            index = await self.writer.commit(*plan.checks, *gone, told)
        except TransactionRejected:
            self._shared.view.expire()
            raise
        except AccessDenied as error:
            raise explained(error) from error
        self._shared.view.apply(changes, index)
        for node in plan.nodes:
            self._shared.view.removed(node.node)
        self._shared.view.expire()  # what is left on their nodes shows whether these go, too
        self.context.recorder.count("farmd_catalog_changes_total", len(plan.entries), change="removed")
        return Outcome("after", 0.0)

    def describe(self, snapshot: Leftovers, plan: Leftovers) -> None:  # noqa: ARG002
        """None: it has nothing to tell unless it is blocked."""
        return
