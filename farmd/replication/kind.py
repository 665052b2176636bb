"""Replication controllers as a kind of work of the claim engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from alerting.alerter import Alerter
from farmd.farm.caches import Caches
from farmd.farm.failsafe import FailsafeGuard, RemovalBudget
from farmd.farm.model import Item
from farmd.farm.moves import Moves
from farmd.farm.world import World
from farmd.placement import Placement
from farmd.replication.report import Recollection
from farmd.replication.worker import ReplicationController
from scheduler.protocol import Scheduler
from store import manifests
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import Claim
from store.manifests import Manifest
from store.ports import Clock, Ids, Recorder, Rng
from store.sessions import Session

MANIFESTS_KEPT = 1024


class ManifestCache:
    """Manifests by digest; they never change, so what was read once is true for ever."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._known: dict[str, Manifest] = {}

    async def get(self, sha: str) -> Manifest:
        """The manifest of a digest.

        Raises:
            NotFound: nobody wrote it, or it was collected.
            RecordInvalid: its body does not match the digest.
        """
        if sha not in self._known:
            if len(self._known) >= MANIFESTS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[sha] = await manifests.read(self._client, self._keys, sha)
        return self._known[sha]


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
    recollection: Recollection
    alerter: Alerter
    clock: Clock
    rng: Rng
    recorder: Recorder
    ids: Ids
    moves: Moves
    budget: RemovalBudget


class Replication:
    """The kind ``rcs``."""

    name = "rcs"

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._items: dict[str, Item] = {}
        self._subscribers: list[Callable[[set[str], bool], None]] = []
        tools.caches.rcs.subscribe(self._changed)
        self._changed(set(tools.caches.rcs.entries) | set(tools.caches.rcs.broken))

    def items(self) -> Mapping[str, Item]:
        """All RCs; those that do not decode too, marked as broken."""
        return self._items

    def trusted(self) -> bool:
        """Whether an RC that is missing here is truly gone (R20)."""
        rcs = self._tools.caches.rcs
        return rcs.ready.is_set() and rcs.doubt is None

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the RCs that changed, and whether that can matter to claiming."""
        self._subscribers.append(changed)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the RCs, their pods, and the small trees that their plans rest on (R15)."""
        caches, keys = self._tools.caches, self._tools.keys
        await caches.rcs.barrier([keys.record("rcs", item) for item in items])
        await caches.pods.barrier([keys.pods(item) for item in items])
        await caches.nodes.barrier()
        await caches.agents.barrier()
        await caches.failsafe.barrier()
        await caches.work.barrier()
        await self._tools.recollection.read(items)

    def blocked(self) -> int:
        """How many RCs here are blocked."""
        return self._tools.world.blocked()

    def worker(self, claim: Claim, session: Session) -> ReplicationController:
        """A worker for one RC."""
        return ReplicationController(claim, session, self._tools)

    def _changed(self, changed: set[str]) -> None:
        rcs, matters = self._tools.caches.rcs, False
        items = {self._tools.keys.last_part(key): key for key in changed}
        for item, key in items.items():
            before = self._items.get(item)
            if (stored := rcs.entries.get(key)) is not None:
                rc = stored.record
                self._items[item] = Item(item, stored.index, rc.labels, tuple(rc.needs))
            elif (error := rcs.broken.get(key)) is not None:
                self._items[item] = Item(item, int(error.fields.get("index", 0)), broken=error.message)
            else:
                self._items.pop(item, None)
            after = self._items.get(item)
            matters = matters or before is None or after is None or not before.claimed_like(after)
        for callback in self._subscribers:
            callback(set(items), matters)
