"""Nodes as a kind of work: one item for each node, so that all farms share one verdict (R21)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from farmd.farm.kind import Items
from farmd.farm.plan import Item
from farmd.nodes import reader as reading
from farmd.nodes.absence import Absences
from farmd.nodes.leftovers import SystemPods
from farmd.nodes.watch import NodeWakers
from farmd.nodes.worker import NodeWorker
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.locks import Claim
from store.sessions import Session

SWEEP_STALL_SECONDS = 180.0
_NO_LABELS: Mapping[str, str] = {}
"""All nodes share this: selectors do not choose among nodes."""


class Nodes(Kind):
    """The kind ``nodes``: every node that has a record or an agent."""

    name = "nodes"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        caches = context.caches
        self._watch = NodeWakers(caches, context.keys)
        self._system = SystemPods(context.client, context.keys)
        self._absences = Absences(
            caches,
            context.keys,
            context.clock,
            context.settings.lost_after,
            self._watch.wake,
            context.progress.loop("sweep", SWEEP_STALL_SECONDS),
            self.guard.look,
        )

    def records(self) -> Items:
        """The nodes that have a record or an agent."""
        caches = self.context.caches
        return Items((caches.nodes, caches.agents), self.context.keys, self._item)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of the kind, with the one sweep of absent agents."""
        return (*super().background(), self._absences.run())

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the small trees that plans rest on, and these nodes' last statuses (R15)."""
        await reading.barrier(self.context.caches)
        await self.context.caches.failsafe.barrier()
        await self.recollection.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> NodeWorker:
        self._absences.under(session)
        return NodeWorker(self, claim, session, wake, self._watch, self._absences, self._system)

    def _item(self, name: str) -> Item | None:
        caches, key = self.context.caches, self.context.keys.node(name)
        if (stored := caches.nodes.get(key)) is not None:
            return Item(name, stored.index, _NO_LABELS)
        if (error := caches.nodes.broken.get(key)) is not None:
            return Item(name, int(error.fields.get("index", 0)), broken=error.message)
        agents, agent = caches.agents, self.context.keys.agent(name)
        return Item(name, 0, _NO_LABELS) if agent in agents.entries or agent in agents.broken else None
