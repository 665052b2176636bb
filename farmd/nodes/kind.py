"""Nodes as a kind of work of the claim engine: one item a node, so that all farms see one verdict (R21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from alerting.alerter import Alerter
from farmd.farm.caches import Caches
from farmd.farm.failsafe import FailsafeGuard
from farmd.farm.items import Items
from farmd.farm.model import Item
from farmd.farm.statuses import Recollection
from farmd.farm.turns import Turns
from farmd.nodes.absence import Absences
from farmd.nodes.leftovers import SystemPods
from farmd.nodes.report import ILLEGIBLE
from farmd.nodes.watch import Watch
from farmd.nodes.worker import NodeWorker
from farmd.progress import Loop
from store.audit import AuditLogStore
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import Claim
from store.nodes import NodeStatus
from store.ports import Clock, Recorder, Rng
from store.sessions import Session

_NO_LABELS: Mapping[str, str] = {}
"""One for all: a selector never chooses among nodes."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every worker of this kind is built with."""

    farm: str
    client: ConsulClient
    keys: Keys
    caches: Caches
    watch: Watch
    absences: Absences
    guard: FailsafeGuard
    system: SystemPods
    recollection: Recollection[NodeStatus]
    audit: AuditLogStore
    alerter: Alerter
    clock: Clock
    rng: Rng
    recorder: Recorder
    turns: Turns = field(default_factory=Turns)

    async def barrier(self) -> None:
        """Read anew what a verdict and a drain are planned from."""
        await self.caches.nodes.barrier()
        await self.caches.agents.barrier()
        await self.caches.work.barrier()


class Nodes:
    """The kind ``nodes``: every node that has a record or an agent.

    ``lost_after`` is the grace period in seconds, ``beat`` the loop that its sweep reports to.
    """

    name = "nodes"

    def __init__(
        self,
        *,
        farm: str,
        client: ConsulClient,
        keys: Keys,
        caches: Caches,
        guard: FailsafeGuard,
        audit: AuditLogStore,
        alerter: Alerter,
        clock: Clock,
        rng: Rng,
        recorder: Recorder,
        lost_after: float,
        beat: Loop,
    ) -> None:
        watch = Watch(caches, keys)
        guard.subscribe(watch.freeze_changed)
        self._tools = Tools(
            farm=farm,
            client=client,
            keys=keys,
            caches=caches,
            watch=watch,
            absences=Absences(caches, keys, clock, lost_after, watch.wake, beat, guard.look),
            guard=guard,
            system=SystemPods(client, keys),
            recollection=Recollection(client, keys, "nodes", NodeStatus, ILLEGIBLE),
            audit=audit,
            alerter=alerter,
            clock=clock,
            rng=rng,
            recorder=recorder,
        )
        self._records = Items((caches.nodes, caches.agents), keys, self._item)
        self._records.subscribe_gone(self._tools.recollection.forget)

    async def run(self) -> None:
        """The one sweep that tells workers when an agent was absent for long enough; until cancelled."""
        await self._tools.absences.run()

    def items(self) -> Mapping[str, Item]:
        """All nodes; those whose record does not decode too, marked as broken."""
        return self._records.items()

    def trusted(self) -> bool:
        """Whether a node that is missing here is truly gone (R20)."""
        return self._records.trusted()

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the nodes that changed, and whether that can matter to claiming."""
        self._records.subscribe(changed)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the small trees that plans rest on, and what was last said of these nodes (R15)."""
        await self._tools.barrier()
        await self._tools.caches.failsafe.barrier()
        await self._tools.recollection.read(items)

    def blocked(self) -> int:
        """How many nodes here wait for people."""
        return self._tools.watch.blocked()

    def worker(self, claim: Claim, session: Session) -> NodeWorker:
        """A worker for one node."""
        self._tools.absences.under(session)
        return NodeWorker(claim, session, self._tools)

    def _item(self, name: str) -> Item | None:
        caches, key = self._tools.caches, self._tools.keys.node(name)
        if (stored := caches.nodes.get(key)) is not None:
            return Item(name, stored.index, _NO_LABELS)
        if (error := caches.nodes.broken.get(key)) is not None:
            return Item(name, int(error.fields.get("index", 0)), broken=error.message)
        return Item(name, 0, _NO_LABELS) if self._tools.absences.present(name) else None
