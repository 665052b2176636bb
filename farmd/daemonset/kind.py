"""Daemon sets as a kind of work of the claim engine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alerting.alerter import Alerter
from farmd.daemonset.watch import Watch
from farmd.daemonset.worker import DaemonSetWorker
from farmd.farm.caches import Caches
from farmd.farm.failsafe import FailsafeGuard, RemovalBudget
from farmd.farm.items import RecordItems
from farmd.farm.manifests import ManifestCache
from farmd.farm.model import Item
from farmd.farm.statuses import Recollection
from farmd.farm.sweep import StatusSweep
from farmd.farm.turns import Turns
from farmd.farm.world import World
from farmd.placement import Placement
from farmd.wake import Wake
from farmd.work.context import Context
from scheduler.protocol import Scheduler
from store.consul.client import ConsulClient
from store.daemonsets import KIND
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
    watch: Watch
    scheduler: Scheduler
    placement: Placement
    guard: FailsafeGuard
    budget: RemovalBudget
    manifests: ManifestCache
    recollection: Recollection[Status]
    sweep: StatusSweep
    alerter: Alerter
    clock: Clock
    rng: Rng
    recorder: Recorder
    ids: Ids
    turns: Turns = field(default_factory=Turns)


class DaemonSets:
    """The kind ``daemonsets``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        tools = self._tools = _tools(context)
        tools.guard.subscribe(tools.world.freeze_changed)
        self._records = RecordItems(tools.caches.daemonsets, tools.keys)
        self._records.subscribe_gone(tools.recollection.forget)

    def items(self) -> Mapping[str, Item]:
        """All daemon sets."""
        return self._records.items()

    def trusted(self) -> bool:
        """Whether a daemon set that is missing here is truly gone (R20)."""
        return self._records.trusted()

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the daemon sets that changed, and whether that can matter to claiming."""
        self._records.subscribe(changed)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the daemon sets, their pods, and the small trees that their plans rest on (R15)."""
        caches, keys = self._tools.caches, self._tools.keys
        await caches.daemonsets.barrier()
        await caches.pods.barrier([keys.pods(item) for item in items])
        for tree in (caches.nodes, caches.agents, caches.reserved, caches.work, caches.failsafe):
            await tree.barrier()
        await self._tools.recollection.read(items)

    def blocked(self) -> int:
        """How many daemon sets here are blocked."""
        return self._tools.watch.blocked()

    def worker(self, claim: Claim, session: Session, wake: Wake) -> DaemonSetWorker:
        """A worker for one daemon set."""
        return DaemonSetWorker(claim, session, self._tools, wake)

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
        watch=Watch(context.caches, context.keys),
        scheduler=context.scheduler,
        placement=context.placements(context.caches.daemonsets),
        guard=context.guards["daemonsets"],
        budget=context.budget(),
        manifests=context.manifests,
        recollection=Recollection(context.client, context.keys, "daemonsets", Status),
        sweep=StatusSweep(context.client, context.keys, "daemonsets"),
        alerter=context.alerter,
        clock=context.clock,
        rng=context.rng,
        recorder=context.recorder,
        ids=context.ids,
        turns=context.turns,
    )
