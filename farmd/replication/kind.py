"""Replication controllers as a kind of work of the claim engine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alerting.alerter import Alerter
from farmd.farm.caches import Caches
from farmd.farm.failsafe import FailsafeGuard, RemovalBudget
from farmd.farm.items import RecordItems
from farmd.farm.manifests import ManifestCache
from farmd.farm.model import Item
from farmd.farm.moves import Moves
from farmd.farm.statuses import Recollection
from farmd.farm.sweep import StatusSweep
from farmd.farm.turns import Turns
from farmd.farm.world import World
from farmd.placement import Placement
from farmd.replication.worker import ReplicationController
from farmd.wake import Wake
from farmd.work.context import Context
from scheduler.protocol import Scheduler
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import Claim
from store.ports import Clock, Ids, Recorder, Rng
from store.sessions import Session
from store.status import Status


@dataclass(frozen=True, slots=True)
class Tools:
    """What every worker of this kind is built with."""

    farm: str
    client: ConsulClient
    keys: Keys
    caches: Caches
    world: World
    scheduler: Scheduler
    placement: Placement
    guard: FailsafeGuard
    manifests: ManifestCache
    recollection: Recollection[Status]
    sweep: StatusSweep
    alerter: Alerter
    clock: Clock
    rng: Rng
    recorder: Recorder
    ids: Ids
    moves: Moves
    budget: RemovalBudget
    turns: Turns = field(default_factory=Turns)


class Replication:
    """The kind ``rcs``."""

    name = "rcs"

    def __init__(self, context: Context) -> None:
        tools = self._tools = _tools(context)
        tools.guard.subscribe(tools.world.freeze_changed)
        self._records = RecordItems(tools.caches.rcs, tools.keys)
        self._records.subscribe_gone(tools.recollection.forget)

    def items(self) -> Mapping[str, Item]:
        """All RCs; those that do not decode too, marked as broken."""
        return self._records.items()

    def trusted(self) -> bool:
        """Whether an RC that is missing here is truly gone (R20)."""
        return self._records.trusted()

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the RCs that changed, and whether that can matter to claiming."""
        self._records.subscribe(changed)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the RCs, their pods, and the small trees that their plans rest on (R15)."""
        caches, keys = self._tools.caches, self._tools.keys
        await caches.rcs.barrier([keys.record("rcs", item) for item in items])
        await caches.pods.barrier([keys.pods(item) for item in items])
        await caches.nodes.barrier()
        await caches.agents.barrier()
        await caches.reserved.barrier()
        await caches.failsafe.barrier()
        await caches.work.barrier()
        await self._tools.recollection.read(items)

    def blocked(self) -> int:
        """How many RCs here are blocked."""
        return self._tools.world.blocked()

    def worker(self, claim: Claim, session: Session, wake: Wake) -> ReplicationController:
        """A worker for one RC."""
        return ReplicationController(claim, session, self._tools, wake)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The sweep that finds statuses which another hand deleted or changed."""
        return (self._tools.sweep.run(self._tools.clock),)


def _tools(context: Context) -> Tools:
    return Tools(
        farm=context.farm,
        client=context.client,
        keys=context.keys,
        caches=context.caches,
        world=context.world,
        scheduler=context.scheduler,
        placement=context.placements(context.caches.rcs),
        guard=context.guards["rcs"],
        manifests=context.manifests,
        recollection=Recollection(context.client, context.keys, "rcs", Status),
        sweep=StatusSweep(context.client, context.keys, "rcs"),
        alerter=context.alerter,
        clock=context.clock,
        rng=context.rng,
        recorder=context.recorder,
        ids=context.ids,
        moves=Moves(context.caches, context.keys, context.settings.max_transfers),
        budget=context.budget(),
        turns=context.turns,
    )
