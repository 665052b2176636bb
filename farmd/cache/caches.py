"""The shared copies of the store that all workers of a farm read from (R15, R23).

There is one tree for each watched family (``store.families``): one parked query while it is small, which
small trees may share, 16 when it has grown, at most 61 in all. ``pods`` and ``intent`` pause between answers:
this farm's own commits arrive there from the transactions' responses, and only the changes of others are seen
later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeVar

from farmd.observe.progress import Progress
from farmd.runtime.tasks import until_one_fails
from store import families, manifests
from store.cache import READ_AT_ONCE, PrefixCache
from store.consul.client import ConsulClient
from store.errors import NotFound, RecordInvalid
from store.families import Family
from store.keys import Keys
from store.manifests import Manifest
from store.named import Owner
from store.ports import Clock, Recorder, Rng
from store.watch import Leadership

T = TypeVar("T")

OWN_TREES_PAUSE = 10.0
STALL_SECONDS = 180.0


class Caches:
    """All trees of one farm; ``run`` keeps them fresh until cancelled.

    ``restored`` is set at each sign that the store was restored from a snapshot; ``begin_anew`` clears it.
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
        self.began_anew = -math.inf
        """When these copies were read again after a restore, by this process's monotonic clock."""
        self.clock = clock
        self.leadership = Leadership(client, clock)
        self._looked = progress.loop("leader", STALL_SECONDS).beat
        self._on_forget: list[Callable[[], None]] = []
        reading = asyncio.Semaphore(READ_AT_ONCE)

        def copy(family: Family[Any]) -> PrefixCache[Any]:
            assert family.record is not None
            return PrefixCache(
                client,
                keys,
                family.name,
                family.record,
                cluster=cluster,
                clock=clock,
                rng=rng,
                sharded=family.sharded,
                pause=own_trees_pause if family.own else family.pause,
                keep_raw=family.keep_raw,
                keep_unknown=family.keep_unknown,
                compact=family.compact(),
                dated=family.dated,
                reading=reading,
                on_answer=progress.loop("cache", STALL_SECONDS).beat,
                on_restore=self.restored.set,
                leadership=self.leadership,
            )

        self._trees = {family.name: copy(family) for family in families.cached()}
        for together in families.together():
            first, *others = (self._trees[family.name] for family in together)
            for other in others:
                first.lead(other, f"{keys.prefix}{together[0].query}")
        self.pods = self.tree(families.PODS)
        self.intent = self.tree(families.INTENT)
        self.reality = self.tree(families.REALITY)
        self.nodes = self.tree(families.NODES)
        self.agents = self.tree(families.AGENTS)
        self.reserved = self.tree(families.RESERVED)
        self.farms = self.tree(families.FARMS)
        self.failsafe = self.tree(families.FAILSAFE)
        self.work = self.tree(families.WORK)

    def tree(self, family: Family[T]) -> PrefixCache[T]:
        """The copy of one family's records."""
        return self._trees[family.name]

    def owners(self) -> list[PrefixCache[Any]]:
        """The trees whose records own pods."""
        return [self.tree(family) for family in families.owners()]

    def all(self) -> list[PrefixCache[Any]]:
        """Every tree."""
        return list(self._trees.values())

    def newest(self) -> int:
        """The highest index that any tree was read at."""
        return max(tree.index for tree in self.all())

    async def run(self) -> None:
        """Keep all trees fresh until cancelled."""
        await until_one_fails([*(tree.run() for tree in self.all()), self.leadership.run(self._looked)])

    def on_forget(self, callback: Callable[[], None]) -> None:
        """Call back when earlier commits prove nothing any more."""
        self._on_forget.append(callback)

    async def begin_anew(self) -> None:
        """Read all trees again, like a farm that was just started; ``filled`` then waits for that."""
        await asyncio.gather(*(tree.begin_anew() for tree in self.all()))
        self.restored.clear()
        self.began_anew = self.clock.mono()
        for callback in self._on_forget:
            callback()

    def publish(self, recorder: Recorder) -> None:
        """Write the metrics of each tree's age and of records that do not decode; done at each scrape."""
        for tree in self.all():
            recorder.set("farmd_watch_staleness_seconds", tree.staleness(), watch=tree.family)
            recorder.set("farmd_invalid_records", len(tree.broken), family=tree.family)

    def doubted(self) -> bool:
        """Whether the last answer of a tree proved nothing (R20)."""
        return any(tree.doubt for tree in self.all())

    def owned(self) -> bool:
        """Whether a pod, or a record that people name, is known."""
        trees = [
            self._trees[name]
            for name, family in families.FAMILIES.items()
            if (family.named or family is families.APPS) and name in self._trees
        ]
        return any(tree.entries or tree.broken for tree in (self.pods, *trees))

    def unread(self) -> list[str]:
        """The trees that were not read in full yet, each with why, if that is known."""
        return [tree.doubt or tree.family for tree in self.all() if not tree.ready.is_set()]

    async def filled(self) -> None:
        """Return once every tree was read in full."""
        for tree in self.all():
            await tree.ready.wait()


# Caches manifests; they never change, so a body that was read once stays valid.

MANIFESTS_KEPT = 1024


class ManifestCache:
    """Manifests by digest."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._known: dict[str, Manifest] = {}

    async def get(self, sha: str) -> Manifest:
        """The manifest with that digest.

        Raises:
            NotFound: it was never written, or it was collected.
            RecordInvalid: its body does not match the digest.
        """
        if sha not in self._known:
            if len(self._known) >= MANIFESTS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[sha] = await manifests.read(self._client, self._keys, sha)
        return self._known[sha]

    async def of(self, owner: Owner) -> Manifest:
        """The manifest of an owner; an owner that is being deleted starts no pod and needs only the pod's id.

        Raises:
            NotFound, RecordInvalid: as ``get``, where the owner shall have pods.
        """
        try:
            return await self.get(owner.manifest)
        except (NotFound, RecordInvalid):
            if not owner.deleting:
                raise
            return Manifest(id=owner.pod_id, command=[])
