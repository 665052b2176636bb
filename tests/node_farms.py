"""Farms that look after nodes, over one embedded server on virtual time: for rules about grace periods."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from store import codec, operations, registration
from store.audit import Audit
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.entry import Entry
from store.keys import Keys, is_sentinel
from store.manifests import Manifest, canonical, digest
from store.nodes import Agent, Drain, Node, NodeStatus
from store.reality import Intent, Reality
from store.work import Work
from tests.fleet import Inbox, RunningFarm, begin_farm
from tests.toys import Faulty
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys()
GRACE = 60.0


@dataclass
class NodeFarm(RunningFarm):
    """One farm, of the kind ``nodes`` if nothing else is said; ``faults`` lies between it and the store."""

    faults: Faulty


class Fleet:
    """Nodes and farms; time stands still unless ``clock`` is moved."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = embedded_server(self.clock)
        self.client = ConsulClient(InProcessTransport(self.server), clock=self.clock)
        self.ids = SeededIds(5)
        self.farms: dict[str, NodeFarm] = {}

    async def start(
        self, name: str, *, alerts: Inbox | None = None, kinds: Sequence[str] = ("nodes",), **settings: Any
    ) -> NodeFarm:
        """Start a farm, and let it claim what is free; ``alerts`` is where it tells people."""
        faults = Faulty(InProcessTransport(self.server))
        running = await begin_farm(
            ConsulClient(faults, clock=self.clock),
            name,
            clock=self.clock,
            ids=self.ids,
            alerts=alerts,
            kinds=kinds,
            **({"lost_after": GRACE, "settle": 0.1, "patience": 1.0, "stable": 1.0} | settings),
        )
        self.farms[name] = NodeFarm(**vars(running), faults=faults)
        await self.clock.advance(0.5)
        return self.farms[name]

    async def end(self, name: str) -> None:
        """A clean stop."""
        farm = self.farms.pop(name)
        farm.stop.set()
        await self.clock.advance(0.1)
        await farm.task

    async def crash(self, name: str) -> None:
        """The process is gone: nothing more is sent, and its session is left to expire."""
        farm = self.farms.pop(name)

        async def silence(_: object) -> None:
            raise asyncio.CancelledError

        farm.faults.before = silence
        farm.task.cancel()
        await asyncio.gather(farm.task, return_exceptions=True)

    async def close(self) -> None:
        for name in list(self.farms):
            await self.crash(name)

    # -- the world -----------------------------------------------------------------------------
    async def put(self, key: str, record: Any) -> None:
        await self.client.transaction([operations.put(key, codec.encode(record))])

    async def add(self, *names: str, **said: Any) -> None:
        """Nodes whose agents are there."""
        for name in names:
            await registration.register_node(self.client, KEYS, name)
            await self.put(KEYS.node(name), Node(**said))
            await self.arrive(name)

    async def arrive(self, *names: str, **said: Any) -> None:
        """Agents are there who say so of themselves; each runs processes."""
        if features := said.get("features"):
            said["features"] = ["process", *features]
        for name in names:
            await self.put(KEYS.agent(name), Agent(node=name, version="1", **said))
        await self.clock.settle()

    async def leave(self, *names: str) -> None:
        for name in names:
            await self.client.delete(KEYS.agent(name))
        await self.clock.settle()

    async def place(self, node: str, instance: str, *, system: bool = False, owner: str = "c1") -> None:
        """A pod that stands on a node and runs there."""
        manifest = Manifest(id=instance, command=["x"], system=system)
        body = canonical(manifest)
        sha = digest(body)
        await self.client.transaction(
            [
                operations.put(KEYS.manifest(sha), body),
                operations.put(KEYS.intent(node, instance), codec.encode(Intent(sha, owner))),
                operations.put(
                    KEYS.reality(node, instance), codec.encode(Reality(manifest=sha, owner=owner))
                ),
            ]
        )

    async def unplace(self, node: str, instance: str) -> None:
        """It is gone from there, for good."""
        await self.client.delete(KEYS.intent(node, instance))
        await self.client.delete(KEYS.reality(node, instance))
        await self.clock.advance(12)  # changes of other hands may come that late

    async def drain(self, node: str, **fields: Any) -> None:
        """Somebody asks for it."""
        await self.put(KEYS.node(node), Node(cordoned=True, drain=Drain(**fields)))
        await self.clock.advance(2)

    # -- what is there ----------------------------------------------------------------------------
    async def _read(self, kind: Any, key: str) -> Any:
        entry = await self.client.read(key)
        return None if entry is None else codec.decode(kind, entry.value, key)

    async def work(self, node: str) -> Work:
        return await self._read(Work, KEYS.work("nodes", node)) or Work()

    async def lost(self, node: str) -> bool:
        return (await self.work(node)).lost_since > 0

    async def node(self, name: str) -> Node:
        return await self._read(Node, KEYS.node(name))

    async def stage(self, name: str) -> str:
        record = await self.node(name)
        return record.drain.stage if record.drain is not None else ""

    async def status(self, name: str) -> NodeStatus | None:
        return await self._read(NodeStatus, KEYS.status("nodes", name))

    async def audits(self, action: str) -> list[Audit]:
        page = await self.client.list(KEYS.tree("audit"))
        found = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        records = [codec.decode(Audit, entry.value, entry.key) for entry in found]
        return [record for record in records if record.action == action]


@asynccontextmanager
async def fleet_of(*nodes: str) -> AsyncIterator[Fleet]:
    """A registered cluster with nodes that are there, and no farm yet."""
    fleet = Fleet()
    await registration.register_cluster(fleet.client, KEYS, fleet.ids)
    await fleet.add(*nodes)
    try:
        yield fleet
    finally:
        await fleet.close()


def base64_of(request: object) -> bytes:
    """The values of a transaction, decoded."""
    if getattr(request, "path", "") != "/v1/txn":
        return b""
    operations = json.loads(getattr(request, "body", b"[]"))
    return b"".join(base64.b64decode(op["KV"].get("Value") or "") for op in operations)


FATES = ("killed, never sent", "killed, never answered", "stopped, sent late")


class Fall:
    """What happens to a farm at its k-th transaction whose audit record is of this kind."""

    def __init__(self, farm: NodeFarm, fate: str, k: int, kind: str) -> None:
        self._left = k
        self._kind = f'"kind":"{kind}"'.encode()
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        if fate == "killed, never answered":
            farm.faults.after = lambda request, _: self._hold(request)
        else:
            farm.faults.before = self._hold

    async def _hold(self, request: object) -> None:
        if not self.reached.is_set():
            self._left -= self._kind in base64_of(request)
            if self._left:
                return
            self.reached.set()
        await self.released.wait()
