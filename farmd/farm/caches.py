"""The shared copies of the store that all workers of a farm read from (R15, R23).

One parked query a tree while it is small, 16 when it has grown; 3 sharded and 8 plain trees make at
most 56 parked queries. ``pods`` and ``intent`` rest between answers: this farm's own commits arrive
there from the transactions' responses, and only other hands are seen later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from farmd.progress import Progress
from store.cache import READ_AT_ONCE, PrefixCache
from store.consul.client import ConsulClient
from store.daemonsets import DaemonSet
from store.failsafe import Failsafe
from store.farms import Member
from store.intent import Intent, shared
from store.keys import Keys
from store.nodes import Agent, Node, Reserved
from store.pods import Pod, SharedLabels
from store.ports import Clock, Recorder, Rng
from store.rcs import ReplicationController, small
from store.reality import Glance, Reality, dated, glance
from store.work import Work

OWN_TREES_PAUSE = 10.0
REALITY_PAUSE = 0.5
STALL_SECONDS = 180.0


class Caches:
    """All trees of one farm; ``run`` keeps them fresh until cancelled.

    ``restored`` is set at each sign that the store was restored from a snapshot, until ``begin_anew``.
    """

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        cluster: str,
        clock: Clock,
        rng: Rng,
        progress: Progress,
        *,
        own_trees_pause: float = OWN_TREES_PAUSE,
    ) -> None:
        self.cluster = cluster
        self.restored = asyncio.Event()
        self._on_forget: list[Callable[[], None]] = []
        reading = asyncio.Semaphore(READ_AT_ONCE)

        def tree(
            family: str,
            kind: type[Any],
            *,
            sharded: bool = False,
            pause: float = 0.0,
            keep_raw: bool = False,
            compact: Callable[[Any], Any] = lambda record: record,
            dated: Callable[[Any, Any, float], Any] | None = None,
        ) -> PrefixCache[Any]:
            return PrefixCache(
                client,
                keys,
                family,
                kind,
                cluster=cluster,
                clock=clock,
                rng=rng,
                sharded=sharded,
                pause=pause,
                keep_raw=keep_raw,
                compact=compact,
                dated=dated,
                reading=reading,
                on_answer=progress.loop("cache", STALL_SECONDS).beat,
                on_restore=self.restored.set,
            )

        self.rcs: PrefixCache[ReplicationController] = tree(
            "rcs", ReplicationController, sharded=True, compact=small
        )
        self.daemonsets: PrefixCache[DaemonSet] = tree("daemonsets", DaemonSet)
        self.pods: PrefixCache[Pod] = tree(
            "pods", Pod, sharded=True, pause=own_trees_pause, compact=SharedLabels().shared
        )
        self.intent: PrefixCache[Intent] = tree("intent", Intent, pause=own_trees_pause, compact=shared)
        self.reality: PrefixCache[Glance] = tree(
            "reality", Reality, sharded=True, pause=REALITY_PAUSE, compact=glance, dated=dated
        )
        self.nodes: PrefixCache[Node] = tree("nodes", Node)
        self.agents: PrefixCache[Agent] = tree("agents", Agent)
        self.reserved: PrefixCache[Reserved] = tree("reserved", Reserved, keep_raw=True)
        self.farms: PrefixCache[Member] = tree("farms", Member)
        self.failsafe: PrefixCache[Failsafe] = tree("failsafe", Failsafe)
        self.work: PrefixCache[Work] = tree("work", Work, keep_raw=True)

    def all(self) -> list[PrefixCache[Any]]:
        """Every tree."""
        return [value for value in vars(self).values() if isinstance(value, PrefixCache)]

    async def run(self) -> None:
        """Keep all trees fresh until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for tree in self.all():
                tasks.create_task(tree.run(), name=f"cache-{tree.family}")

    def on_forget(self, callback: Callable[[], None]) -> None:
        """Call back when all that was committed before proves nothing any more."""
        self._on_forget.append(callback)

    async def begin_anew(self) -> None:
        """Read all trees again, as a farm that was just started; ``filled`` then waits for that."""
        await asyncio.gather(*(tree.begin_anew() for tree in self.all()))
        self.restored.clear()
        for callback in self._on_forget:
            callback()

    def publish(self, recorder: Recorder) -> None:
        """Write how old and how readable each tree is; done at each scrape."""
        for tree in self.all():
            recorder.set("farmd_watch_staleness_seconds", tree.staleness(), watch=tree.family)
            recorder.set("farmd_invalid_records", len(tree.broken), family=tree.family)

    async def filled(self) -> None:
        """Return once every tree was read in full."""
        for tree in self.all():
            await tree.ready.wait()
