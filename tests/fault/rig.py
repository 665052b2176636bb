"""A cluster of its own under a prefix, and everything that fault tests do to it and ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from farmd.commands.mutation import Call
from farmd.farm.members import preferred
from farmd.runtime.clock import SystemIds
from store import codec, manifests, operations, registration
from store.consul.client import ConsulClient
from store.daemonsets import DaemonSet
from store.farms import Member
from store.keys import Keys
from store.locks import Holder
from store.manifests import Manifest
from store.nodes import Node
from store.rcs import ReplicationController
from store.status import Status
from tests.fault.farm_process import FarmProcess, Nursery
from tests.fault.invariants import Dump, unfinished, violations
from tests.fleet import CLOCK, LIMIT, Cluster, RunningFarm, client_of, eventually, patient_client, start_farm
from tests.proxy import Hold, Seen

ASKING = Manifest(id="app", command=["sleep", "1000"], resources={"cpu": 1.0})
NEVER = 1_000_000
"""A step that no case comes to."""
PLAIN = Manifest(id="app", command=["sleep", "1000"])


def named(pod_id: str) -> Manifest:
    """A manifest of another pod: two controllers of one pod id exclude each other from a node."""
    return Manifest(id=pod_id, command=["sleep", "1000"])


def id_preferring(favourite: str, *others: str) -> str:
    """A random id of an item that prefers one farm among several (R7)."""
    while True:
        item = SystemIds().new()
        if preferred(item, [favourite, *others]) == favourite:
            return item


def keys_of(hold: Hold) -> list[str]:
    """The keys that a held transaction names."""
    assert hold.seen is not None
    return [operation["KV"]["Key"] for operation in json.loads(hold.seen.body) if "KV" in operation]


def sessions_of(seen: Seen) -> set[str]:
    """The sessions under which a transaction locks keys."""
    found = {operation.get("KV", {}).get("Session") for operation in json.loads(seen.body)}
    return {session for session in found if session}


async def came(hold: Hold, done: Coroutine[Any, Any, None]) -> bool:
    """Whether the request to hold came before something else was done, which may fail."""
    waiters = [asyncio.create_task(hold.reached.wait()), asyncio.create_task(done)]
    try:
        async with asyncio.timeout(LIMIT):
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    if not (hold.reached.is_set() or waiters[1].cancelled()):
        waiters[1].result()
    return hold.reached.is_set()


def whole(steps: int) -> Iterable[int]:
    """Each step."""
    return range(1, steps + 1)


def a_tenth(steps: int) -> Iterable[int]:
    """The first step, the last, and a tenth of the others, the same in every run.

    It is enough on a real server where a test on virtual time takes each of them.
    """
    inner = range(2, steps)
    return sorted({1, steps, *random.Random(steps).sample(inner, -(-len(inner) // 10))})


async def every_k(
    case: Callable[[int], Awaitable[int]],
    at_once: int,
    chosen: Callable[[int], Iterable[int]] = whole,
) -> int:
    """Try ``case`` for its steps, several side by side; how many it has when nothing happens.

    A case returns how many steps came. None is tried that is not there: it would cost a whole run.
    """
    steps, gate = await case(NEVER), asyncio.Semaphore(at_once)

    async def one(k: int) -> None:
        async with gate:
            await case(k)

    async with asyncio.TaskGroup() as together:
        for k in chosen(steps):
            together.create_task(one(k))
    return steps


@dataclass
class Rig:
    """One registered cluster; ``address`` is Consul itself, never a proxy."""

    address: str
    client: ConsulClient
    keys: Keys
    cluster: Cluster
    nursery: Nursery | None = None
    farms: list[RunningFarm] = field(default_factory=list)
    processes: list[FarmProcess] = field(default_factory=list)
    background: list[asyncio.Task[None]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    # -- setting up ----------------------------------------------------------------------------
    async def nodes(self, count: int) -> list[str]:
        """Register nodes with room for plenty, whose agents are present for as long as the test lasts."""
        names = [f"node-{number:03d}" for number in range(count)]
        await self.cluster.register_nodes(dict.fromkeys(names, Node(capacity={"cpu": 100.0})))
        return names

    async def rc(
        self, replicas: int, *, name: str = "app", manifest: Manifest = PLAIN, **fields: Any
    ) -> ReplicationController:
        return await self.cluster.create_rc(name, replicas, manifest=manifest, **fields)

    async def daemonset(self, *, manifest: Manifest = PLAIN, **fields: Any) -> DaemonSet:
        """Write a daemon set with its manifest, as ``farmctl daemonset create`` would."""
        sha = await self.use(manifest)
        fields = {"id": SystemIds().new(), "name": "logs", "min_healthy_time": 0.0} | fields
        made = DaemonSet(manifest=sha, pod_id=manifest.id, **fields)
        await self.cluster.write(
            [
                operations.create(self.keys.record("daemonsets", made.id), codec.encode(made)),
                operations.create(self.keys.name("daemonsets", made.name), codec.encode(made.id)),
            ]
        )
        return made

    async def change(self, rc_id: str, **fields: Any) -> None:
        """Change a controller's record, whoever changed it last."""
        await self.rewrite(self.keys.record("rcs", rc_id), ReplicationController, **fields)

    async def rewrite(self, key: str, kind: type[msgspec.Struct], **fields: Any) -> None:
        """Change a record, whoever changed it last."""
        entry = await self.client.read(key, mode="consistent")
        assert entry is not None
        changed = msgspec.structs.replace(codec.decode(kind, entry.value, key), **fields)
        await self.cluster.write([operations.put(key, codec.encode(changed))])

    async def use(self, manifest: Manifest) -> str:
        """Write a manifest and return its digest."""
        body = manifests.canonical(manifest)
        sha = manifests.digest(body)
        await self.client.put(self.keys.manifest(sha), body)
        return sha

    async def shun(self, hold: Hold) -> None:
        """Close the nodes that a held transaction names.

        Whoever plans anew then chooses others, so that nothing but its fence keeps that transaction out.
        """
        nodes = {
            self.keys.intent_parts(key)[0]
            for key in keys_of(hold)
            if key.startswith(self.keys.tree("intent"))
        }
        closed = codec.encode(Node(capacity={"cpu": 100.0}, cordoned=True))
        await self.cluster.write([operations.put(self.keys.node(node), closed) for node in sorted(nodes)])

    def obeyed(self) -> None:
        """From now on reality follows intent."""
        self.background.append(asyncio.create_task(self.cluster.obey(self.stop)))

    def call(self) -> Call:
        """A person at the command line."""
        return Call(self.client, self.keys, CLOCK, SystemIds(), "user/ada@desk")

    # -- farms ---------------------------------------------------------------------------------
    def process(self, name: str, address: str = "", **settings: Any) -> FarmProcess:
        """Start a farm as a process; ``address`` may be a proxy's."""
        assert self.nursery is not None
        process = self.nursery.farm(address or self.address, name, self.keys, **settings)
        self.processes.append(process)
        return process

    async def farm(self, name: str, address: str = "", **settings: Any) -> RunningFarm:
        """Start a farm in this process and wait until it is ready."""
        client = client_of(address or self.address)
        running = await start_farm(client, name, keys=self.keys, **settings)
        self.farms.append(running)
        return running

    async def present(self, farm: str) -> None:
        """Wait until a farm is there."""

        async def so() -> bool:
            return bool(await self.session_of(farm))

        await self.until(so, f"the presence of {farm}")

    async def names(self) -> list[str]:
        """All nodes."""
        tree = await self.cluster.entries(self.keys.tree("nodes"))
        return sorted(map(self.keys.last_part, tree))

    async def session_of(self, farm: str) -> str:
        """The session of a farm that is present; empty if it is not."""
        entry = await self.client.read(self.keys.farm(farm), mode="consistent")
        return "" if entry is None else codec.decode(Member, entry.value, entry.key).session

    async def expire(self, farm: str, hold: Hold | None = None) -> None:
        """End a farm's session, as Consul would at twice its TTL.

        Until the farm is announced, only the transaction in ``hold``, which announces it, names the session.
        """
        entry = await self.client.read(self.keys.farm(farm), mode="consistent")
        held = sessions_of(hold.seen) if hold is not None and hold.seen is not None else set()
        for session in held | ({entry.session} if entry is not None else set()):
            await self.client.destroy_session(session)

    async def owner(self, item: str, kind: str = "rcs") -> str:
        """Which farm holds an item's lock; empty: nobody."""
        entry = await self.client.read(self.keys.lock(kind, item), mode="consistent")
        return "" if entry is None else Holder.parse(entry.value).id

    async def owned_by(self, farm: str, *items: str, kind: str = "rcs") -> None:
        """Wait until a farm holds the locks of these items."""

        async def so() -> bool:
            return {await self.owner(each, kind) for each in items} == {farm}

        await self.until(so, f"{farm} as owner")

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait for a condition; its failure tells the whole story."""
        try:
            await eventually(condition, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._story()}") from None

    # -- looking -------------------------------------------------------------------------------
    async def status(self, item: str, kind: str = "rcs") -> Status | None:
        entry = await self.client.read(self.keys.status(kind, item), mode="consistent")
        return None if entry is None else codec.decode(Status, entry.value, entry.key)

    async def count(self, rc_id: str) -> int:
        """How many pods a controller has now."""
        return len(await self.cluster.pods(rc_id))

    async def settled(self, context: str = "") -> Dump:
        """Wait until every controller is as it should be, then check every invariant."""
        last: list[str] = []

        async def done() -> bool:
            nonlocal last
            last = unfinished(await self.cluster.dump())
            return not last

        try:
            await eventually(done, what="convergence")
        except AssertionError as error:
            raise AssertionError(f"{context}: {error}: {last}\n{await self._story()}") from None
        return await self.well(context)

    async def well(self, context: str = "") -> Dump:
        """Check every invariant now."""
        dump = await self.cluster.dump()
        if found := violations(dump):
            lines = "\n".join(found[:20])
            raise AssertionError(f"{context}: {len(found)} violations\n{lines}\n{await self._story()}")
        return dump

    async def _story(self) -> str:
        dump = await self.cluster.dump()
        records = [
            f"{index} {a.actor} {a.action} {a.before}->{a.after}"
            f" +{len(a.placed)} -{len(a.removed)} ~{len(a.relabelled)}"
            for index, a in dump.audits
        ]
        statuses = [f"{await self.status(rc_id)}" for rc_id in dump.rcs]
        statuses += [f"{await self.status(each, 'daemonsets')}" for each in dump.daemonsets]
        tails = [f"--- {process.log.name}\n{process.tail()}" for process in self.processes]
        return "\n".join(["audit:", *records[-30:], "status:", *statuses, *tails])

    async def close(self) -> None:
        self.stop.set()
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        for process in self.processes:
            await process.end()
        for running in self.farms:
            running.task.cancel()
        await asyncio.gather(*(running.task for running in self.farms), return_exceptions=True)
        for running in self.farms:
            await running.client.close()
        with contextlib.suppress(Exception):
            await self.client.delete(self.keys.prefix, recurse=True)
        await self.client.close()


@contextlib.asynccontextmanager
async def rig_on(address: str, nursery: Nursery | None = None, nodes: int = 0) -> AsyncIterator[Rig]:
    """A rig for the length of a ``with`` block."""
    client = patient_client(address)
    keys = Keys(f"t{secrets.token_hex(4)}/")
    rig = Rig(address, client, keys, Cluster(client, keys), nursery)
    try:
        await registration.register_cluster(client, keys, SystemIds())
        if nodes:
            await rig.nodes(nodes)
        yield rig
    finally:
        await rig.close()
