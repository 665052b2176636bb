"""A kind of work whose workers do what a test tells them: for the claim engine itself.

Items are RC records; a toy worker waits until it is cancelled, unless ``does`` says otherwise for its
item. ``Farms`` runs real farms over the embedded server on virtual time; requests of one farm can be
made to fail by ``Faulty``, without a network.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.farm.farm import Farm
from farmd.farm.kind import Worker
from farmd.farm.members import Features
from farmd.farm.plan import FarmSettings, Item
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.runtime.wake import Wake
from store import codec, operations, registration
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.entry import Entry
from store.families import RCS
from store.farms import Member
from store.keys import Keys, is_sentinel
from store.locks import Claim, Holder, Locker
from store.ports import Clock, Ids, Request, Response, Transport
from store.rcs import ReplicationController
from store.sessions import Session
from store.work import Work
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys()

Behaviour = Callable[[Claim, Session], Awaitable[object]]
"""What a worker does; it sleeps afterwards if the result is true."""


async def for_ever(claim: Claim, session: Session) -> None:
    """What a toy does by default."""
    await asyncio.Event().wait()


class _Toy:
    def __init__(self, kind: Toys, claim: Claim, session: Session, wake: Wake) -> None:
        self._kind = kind
        self._claim = claim
        self._session = session
        self._wake = wake

    async def gone(self) -> None:
        """It has told nobody anything."""

    def release(self) -> None:
        self._kind.released.append(self._claim.item)

    def started(self) -> None:
        self._kind.at_work[self._claim.item] += 1

    def stopped(self) -> None:
        self._kind.at_work[self._claim.item] -= 1

    async def run(self) -> bool:
        item = self._claim.item
        self._wake.clear()
        self._kind.running.setdefault(item, []).append(self._claim)
        self._kind.starts.append(item)
        try:
            sleeps = await self._kind.does.get(item, for_ever)(self._claim, self._session)
        finally:
            self._kind.running[item].remove(self._claim)
            if not self._kind.running[item]:
                del self._kind.running[item]
        return bool(sleeps)


class Toys:
    """The kind. ``running`` are the workers that run now, ``starts`` all that ever ran, ``released`` those
    that have let go of their alerts. ``at_work`` counts for each item its workers that were not stopped yet.
    """

    name = "rcs"

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._records = caches.tree(RCS)
        self._keys = keys
        self.does: dict[str, Behaviour] = {}
        self.running: dict[str, list[Claim]] = {}
        self.starts: list[str] = []
        self.released: list[str] = []
        self.at_work = Counter[str]()
        self.barriers = 0
        self.barrier_error: Exception | None = None

    def items(self) -> Mapping[str, Item]:
        found = {}
        for stored in self._records.entries.values():
            rc = stored.record
            found[rc.id] = Item(rc.id, stored.index, rc.labels, tuple(rc.needs))
        for key, error in self._records.broken.items():
            item = self._keys.last_part(key)
            found[item] = Item(item, int(error.fields["index"]), broken=error.message)
        return found

    def publish(self, recorder: object) -> None:
        """It has no metrics."""

    def trusted(self) -> bool:
        return self._records.ready.is_set() and self._records.doubt is None

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        self._records.subscribe(lambda keys: changed({self._keys.last_part(k) for k in keys}, True))

    async def barrier(self, items: Sequence[str]) -> None:
        self.barriers += 1
        if self.barrier_error is not None:
            raise self.barrier_error
        await self._records.barrier()

    def locker(self, client: ConsulClient, keys: Keys) -> Locker:
        return Locker(client, keys, self.name)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        return ()

    def worker(self, claim: Claim, session: Session, wake: Wake) -> Worker:
        return _Toy(self, claim, session, wake)


class Faulty:
    """A ``store.ports.Transport`` around another one; ``before`` and ``after`` may raise or wait."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.before: Callable[[Request], Awaitable[None]] | None = None
        self.after: Callable[[Request, Response], Awaitable[None]] | None = None
        self.sent: list[Request] = []

    async def send(self, request: Request, timeout: float) -> Response:
        self.sent.append(request)
        if self.before is not None:
            await self.before(request)
        response = await self._inner.send(request, timeout)
        if self.after is not None:
            await self.after(request, response)
        return response

    async def close(self) -> None:
        await self._inner.close()


def is_transaction(request: Request) -> bool:
    return request.path == "/v1/txn"


class ToyFarm:
    """One farm with toy workers; ``process`` is what its presence says of its process."""

    def __init__(
        self,
        name: str,
        client: ConsulClient,
        clock: Clock,
        cluster: str,
        ids: Ids,
        keys: Keys = KEYS,
        process: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        rng = random.Random(name)
        self.name = name
        self.client = client
        self.keys = keys
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        progress = Progress(clock, metrics)
        self.caches = Caches(client, keys, cluster, clock, rng, progress)
        self.kind = Toys(self.caches, keys)
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        chosen = {"name": name, "settle": 0.1, "patience": 1.0, "stable": 1.0} | settings
        made = FarmSettings(**chosen)
        self.farm = Farm(
            settings=made,
            features=Features(made.knows),
            member=Member(id=name, version="1", kinds=["rcs"], selector=made.selector, **process),
            client=client,
            keys=keys,
            caches=self.caches,
            fleet=FleetIndex(self.caches, keys),
            kinds=[self.kind],
            guards={},
            clock=clock,
            rng=rng,
            ids=ids,
            recorder=metrics,
            progress=progress,
        )

    def start(self) -> None:
        self.task = asyncio.create_task(self.farm.start(self.stop))

    @property
    def works_on(self) -> set[str]:
        """Items with a worker that runs now."""
        return set(self.kind.running)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


class Farms:
    """Farms over one embedded server on virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = embedded_server(self.clock)
        self.client = ConsulClient(InProcessTransport(self.server), clock=self.clock)
        self.ids = SeededIds(3)
        self.farms: dict[str, ToyFarm] = {}
        self.faults: dict[str, Faulty] = {}

    async def set_up(self) -> None:
        self.cluster = await registration.register_cluster(self.client, KEYS, self.ids)

    async def start(self, name: str, **settings: Any) -> ToyFarm:
        """Start a farm and let it come to what it can at this moment."""
        transport = Faulty(InProcessTransport(self.server))
        client = ConsulClient(transport, clock=self.clock)
        farm = ToyFarm(name, client, self.clock, self.cluster, self.ids, **settings)
        self.farms[name], self.faults[name] = farm, transport
        farm.start()
        await self.clock.settle()
        return farm

    async def close(self) -> None:
        for farm in self.farms.values():
            self.faults[farm.name].before = self.faults[farm.name].after = None
            if farm.task is not None:
                farm.task.cancel()
        await asyncio.gather(*(f.task for f in self.farms.values() if f.task), return_exceptions=True)

    async def add(self, count: int = 1, **fields: Any) -> list[str]:
        """New items; returns their ids."""
        made = []
        for _ in range(count):
            item = fields.get("id") or self.ids.new()
            await self.write(item, **{k: v for k, v in fields.items() if k != "id"})
            made.append(item)
        return made

    async def add_at_once(self, count: int) -> list[str]:
        """New items in one transaction, so that no farm sees a part of them; returns their ids."""
        made = [self.ids.new() for _ in range(count)]
        await self.client.transaction([operations.put(*_toy(item)) for item in made])
        return made

    async def write(self, item: str, **fields: Any) -> None:
        await self.client.put(*_toy(item, **fields))

    async def remove(self, item: str) -> None:
        await self.client.delete(KEYS.record("rcs", item))

    async def locks(self) -> dict[str, Entry]:
        """The locks on items, by item."""
        page = await self.client.list(KEYS.tree("locks") + "rcs/")
        return {KEYS.last_part(r.key): Entry.of(r) for r in page.items if not is_sentinel(r.key)}

    async def holders(self) -> dict[str, str]:
        """Which farm holds each item's lock, as the lock's value says."""
        return {item: Holder.parse(entry.value).id for item, entry in (await self.locks()).items()}

    async def work(self, item: str) -> Work | None:
        entry = await self.client.read(KEYS.work("rcs", item))
        return None if entry is None else codec.decode(Work, entry.value, entry.key)

    async def settled(self) -> None:
        """Every item is held once, by a live farm that works on it under that very lock."""
        locks = await self.locks()
        for farm in self.farms.values():
            if farm.task is None or farm.task.done():
                continue
            for item, claims in farm.kind.running.items():
                assert len(claims) == 1, f"{item} has {len(claims)} workers in {farm.name}"
                assert locks[item].modify_index == claims[0].index, f"{item}: worker of another claim"
                assert locks[item].session == claims[0].session
        working = [item for farm in self.farms.values() for item in farm.works_on]
        assert sorted(working) == sorted(set(working)), "an item has two workers"
        assert set(working) == set(locks), "a lock without a worker, or a worker without a lock"


def _toy(item: str, **fields: Any) -> tuple[str, bytes]:
    """Key and value of an item."""
    rc = ReplicationController(id=item, name=f"n-{item}", manifest="m", replicas_desired=0, **fields)
    return KEYS.record("rcs", item), codec.encode(rc)
