"""A whole fleet around a Consul for tests: farms in this process, nodes without machines.

``SimulatedNodes`` registers nodes and keeps their agents present; ``obey`` makes reality follow intent, as
healthy agents would. Waiting is by condition on the state of the world, never by a fixed sleep.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from alerting.alert import Alert
from farmd.farm.farm import Farm
from farmd.farm.plan import FarmSettings
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.process.farm_service import wire_farm
from farmd.runtime.clock import SystemClock, SystemIds
from store import codec, manifests, operations, registration
from store.audit import Audit
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport, connect
from store.entry import Entry
from store.keys import Keys, is_sentinel
from store.manifests import Manifest
from store.nodes import Agent, Node
from store.operations import Operation
from store.ports import Clock, Ids
from store.rcs import ReplicationController
from store.reality import Health, Intent, Reality
from store.sessions import Session
from store.status import Status
from store.version import VERSION
from tests.fault.invariants import Dump
from tests.patient import Patient

T = TypeVar("T")
KEYS = Keys()
CLOCK = SystemClock()
# What takes this long is broken: on a loaded machine a second's work may well take ten.
LIMIT = 180.0
FAST = {"settle": 0.05, "patience": 0.3, "stable": 0.5}
HELLO = Manifest(id="hello", command=["sleep", "1000"])


def client_of(address: str, token: str = "", session_node: str = "") -> ConsulClient:
    """A client of one server, whatever the environment says."""
    env = {"CONSUL_HTTP_TOKEN": token} if token else {}
    return connect(env, CLOCK, address=address, session_node=session_node)


def patient_client(address: str) -> ConsulClient:
    """A client of the test itself, whose loop may be busy for longer than farmd waits."""
    transport = HttpTransport(Address.from_environment({}, address))
    return ConsulClient(Patient(transport, CLOCK, LIMIT), clock=CLOCK)


async def long_log(client: ConsulClient, transactions: int = 1500) -> None:
    """Write log entries that Consul applies anew, one after the other, when it starts again."""
    value = b"x" * 100
    bodies = [[operations.put(f"log/{n}/{k}", value) for k in range(64)] for n in range(100)]
    for _ in range(transactions // len(bodies)):
        await asyncio.gather(*(client.transaction(body) for body in bodies))


class Inbox:
    """An alerter that keeps what it was told, and what people were told: repeats are none.

    ``owing``: the ends of these incidents cannot be delivered.
    """

    def __init__(self) -> None:
        self.owing: set[str] = set()
        self.firing: dict[str, Alert] = {}
        self.fired: list[Alert] = []
        self.resolved: list[str] = []
        self.released: list[str] = []

    async def fire(self, alert: Alert) -> None:
        if alert.incident_key not in self.firing:
            self.fired.append(alert)
        self.firing[alert.incident_key] = alert

    async def resolve(self, incident_key: str) -> None:
        if self.firing.pop(incident_key, None) is not None:
            self.resolved.append(incident_key)

    async def adopt(self, alert: Alert, *, anywhere: bool = False) -> None:
        self.firing.setdefault(alert.incident_key, alert)

    async def forget(self, incident_key: str) -> None:
        self.firing.pop(incident_key, None)

    def release(self, incident_key: str) -> None:
        self.released.append(incident_key)

    def owes(self, incident_key: str) -> bool:
        return incident_key in self.owing


async def eventually(
    condition: Callable[[], Awaitable[Any]], *, within: float = LIMIT, what: str = "the condition"
) -> Any:
    """Return the first true answer of ``condition``; fails with its last answer.

    It looks for a third of the time at most, because what it waits for needs the processor, too.
    """
    answer, began = None, CLOCK.mono()
    try:
        async with asyncio.timeout(within):
            while not (answer := await condition()):
                await asyncio.sleep(max(0.02, 2 * (CLOCK.mono() - began)))
                began = CLOCK.mono()
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {within} s; last: {answer!r}") from None
    return answer


async def in_time(what: Awaitable[T]) -> T:
    """Await what must come, and fail when it does not."""
    return await asyncio.wait_for(what, LIMIT)


@dataclass
class Cluster:
    """A registered cluster on a server, and shorthands for what tests ask of it."""

    client: ConsulClient
    keys: Keys = KEYS
    id: str = ""
    nodes: dict[str, Session] = field(default_factory=dict)

    async def register(self) -> str:
        """Register the cluster; returns its id."""
        self.id = await registration.register_cluster(self.client, self.keys, SystemIds())
        return self.id

    async def dump(self) -> Dump:
        """The whole cluster in one consistent read."""
        page = await self.client.list(self.keys.prefix, mode="consistent")
        return Dump(self.keys, {raw.key: Entry.of(raw) for raw in page.items})

    async def status(self, rc: ReplicationController) -> Status:
        """What the RC's owner last said; an empty one before it said anything."""
        entry = await self.client.read(self.keys.status("rcs", rc.id))
        return Status(state="progressing") if entry is None else codec.decode(Status, entry.value, entry.key)

    async def locks(self) -> dict[str, Entry]:
        """Ownership locks by RC id."""
        found = await self.entries(self.keys.tree("locks") + "rcs/")
        return {self.keys.last_part(key): entry for key, entry in found.items()}

    async def put(self, key: str, record: Any) -> int:
        entries = await self.client.transaction([operations.put(key, codec.encode(record))])
        return entries[-1].modify_index

    async def entries(self, prefix: str) -> dict[str, Entry]:
        page = await self.client.list(prefix, mode="consistent")
        return {raw.key: Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)}

    async def pods(self, owner: str) -> list[tuple[str, str]]:
        """(node, instance) of an owner's pods."""
        return sorted(self.keys.pod_parts(key)[1:] for key in await self.entries(self.keys.pods(owner)))

    async def intents(self) -> dict[tuple[str, str], Intent]:
        found = await self.entries(self.keys.tree("intent"))
        return {self.keys.intent_parts(key): codec.decode(Intent, e.value, key) for key, e in found.items()}

    async def audits(self) -> list[Audit]:
        found = await self.entries(self.keys.tree("audit"))
        return [codec.decode(Audit, found[key].value, key) for key in sorted(found)]

    async def write(self, writes: Sequence[Operation]) -> None:
        """As few transactions as Consul permits."""
        for start in range(0, len(writes), operations.MAX_OPERATIONS):
            await self.client.transaction([*writes[start : start + operations.MAX_OPERATIONS]])

    async def add_nodes(self, labels: Mapping[str, Mapping[str, str]], *features: str) -> None:
        """Register nodes whose agents are present, and have these features."""
        await self.register_nodes({name: Node(labels=dict(said)) for name, said in labels.items()}, *features)

    async def register_nodes(self, nodes: Mapping[str, Node], *features: str) -> None:
        """Write nodes whose agents are present, and have these features."""
        value = registration.sentinel_value(await registration.cluster_id(self.client, self.keys))
        writes = [operations.put(self.keys.sentinel(self.keys.intents(name)), value) for name in nodes]
        writes += [operations.put(self.keys.node(name), codec.encode(node)) for name, node in nodes.items()]
        await self.write(writes)
        await self.keep_present(nodes, *features)

    async def keep_present(self, names: Iterable[str], *features: str) -> None:
        """Presence of many agents under one session, which is never renewed past a test."""
        session = await Session.open(self.client, CLOCK, name="simulated agents", ttl=3600)
        agents = {name: Agent(node=name, version=VERSION, features=list(features)) for name in names}
        await self.write(
            [
                operations.lock(self.keys.agent(name), codec.encode(agent), session.id)
                for name, agent in agents.items()
            ]
        )
        self.nodes.update(dict.fromkeys(agents, session))

    async def lose_agents(self, *names: str) -> None:
        for name in names:
            await self.client.delete(self.keys.agent(name))

    async def create_rc(
        self, name: str, replicas: int, *, manifest: Manifest = HELLO, **fields: Any
    ) -> ReplicationController:
        """Write an RC with its manifest, as ``farmctl rc create`` would.

        Its pods are available as soon as they are healthy, unless a test says otherwise.
        """
        body = manifests.canonical(manifest)
        sha = manifests.digest(body)
        rc = ReplicationController(
            id=fields.pop("id", SystemIds().new()),
            name=name,
            manifest=sha,
            pod_id=manifest.id,
            replicas_desired=replicas,
            **({"min_healthy_time": 0.0} | fields),
        )
        await self.client.transaction(
            [
                operations.put(self.keys.manifest(sha), body),
                operations.create(self.keys.record("rcs", rc.id), codec.encode(rc)),
                operations.create(self.keys.name("rcs", name), codec.encode(rc.id)),
            ]
        )
        return rc

    async def change_rc(self, rc: ReplicationController, **fields: Any) -> ReplicationController:
        changed = msgspec.structs.replace(rc, **fields)
        await self.put(self.keys.record("rcs", rc.id), changed)
        return changed

    async def obey(self, stop: asyncio.Event) -> None:
        """Make reality follow intent as healthy agents would, until ``stop``."""
        index = 0
        known: dict[tuple[str, str], int] = {}
        while not stop.is_set():
            page = await self.client.list(self.keys.tree("intent"), index=index, wait=1.0)
            index = page.index
            if page.unchanged:
                continue
            wanted = {}
            for raw in page.items:
                if not is_sentinel(raw.key):
                    wanted[self.keys.intent_parts(raw.key)] = Entry.of(raw)
            for place, entry in wanted.items():
                if known.get(place) != entry.modify_index:
                    intent = codec.decode(Intent, entry.value, entry.key)
                    reality = Reality(
                        manifest=intent.manifest,
                        owner=intent.owner,
                        started=CLOCK.now(),
                        intent=entry.modify_index,
                        health=Health("passing", CLOCK.now()),
                    )
                    await self.client.put(self.keys.reality(*place), codec.encode(reality))
                    known[place] = entry.modify_index
            for place in known.keys() - wanted.keys():
                await self.client.delete(self.keys.reality(*place))
                del known[place]


@dataclass
class RunningFarm:
    """A farm in this process."""

    farm: Farm
    stop: asyncio.Event
    task: asyncio.Task[None]
    alerts: Inbox
    client: ConsulClient
    registry: CollectorRegistry

    async def close(self) -> None:
        """A clean stop, awaited."""
        self.stop.set()
        await in_time(self.task)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of this farm's metrics; 0 where there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    @property
    def owned(self) -> set[str]:
        return {item for loop in self.farm.loops for item in loop.supervisor.owned}


async def begin_farm(
    client: ConsulClient,
    name: str,
    *,
    keys: Keys = KEYS,
    clock: Clock = CLOCK,
    ids: Ids | None = None,
    alerts: Inbox | None = None,
    seed: int = 1,
    **chosen: Any,
) -> RunningFarm:
    """Start a farm in this process; ``chosen`` are settings of the farm and arguments of ``build_farm``."""
    registry, inbox = CollectorRegistry(), alerts or Inbox()
    metrics = Metrics(registry)
    settings = {each.name for each in fields(FarmSettings)} & chosen.keys()
    farm = await wire_farm(
        settings=FarmSettings(**({"name": name} | FAST | {each: chosen[each] for each in settings})),
        client=client,
        keys=keys,
        clock=clock,
        rng=random.Random(f"{seed}/{name}"),
        ids=ids or SystemIds(),
        recorder=metrics,
        progress=Progress(clock, metrics),
        alerter=inbox,
        **{each: chosen[each] for each in chosen.keys() - settings},
    )
    stop = asyncio.Event()
    return RunningFarm(farm, stop, asyncio.create_task(farm.start(stop)), inbox, client, registry)


async def start_farm(client: ConsulClient, name: str, **chosen: Any) -> RunningFarm:
    """Start a farm in this process and wait until it is ready."""
    quick = {"kinds": ("rcs",), "thaw_after": 1.0, "own_trees_pause": 0.2}
    running = await begin_farm(client, name, **(quick | chosen))
    ready = asyncio.create_task(running.farm.ready.wait())
    await asyncio.wait([ready, running.task], return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
    ready.cancel()
    if running.task.done():
        running.task.result()
    if not running.farm.ready.is_set():
        raise AssertionError(f"farm {name} did not become ready")
    return running


@asynccontextmanager
async def farm_on(
    client: ConsulClient, name: str = f"farm-{os.getpid()}", **settings: Any
) -> AsyncIterator[RunningFarm]:
    """A farm for the length of a ``with`` block."""
    running = await start_farm(client, name, **settings)
    try:
        yield running
    finally:
        await running.close()


@asynccontextmanager
async def cluster_on(address: str) -> AsyncIterator[Cluster]:
    """A registered cluster under a prefix of its own on a server that tests share."""
    client = patient_client(address)
    try:
        cluster = Cluster(client, Keys(f"test-{SystemIds().new()}/"))
        await cluster.register()
        yield cluster
    finally:
        await client.close()
