"""A service in Consul's catalogue, watched through everything that happens to its pods and to its farms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from farmd.nodes import commands as node_commands
from store import catalog, codec, operations
from store.nodes import Agent, Node
from store.registration import cluster_id
from store.services import Catalog
from tests.catalog_watch import Watch, watched
from tests.catalogs import Reader
from tests.fault.farm_process import Nursery
from tests.fault.rig import Rig, rig_on
from tests.fleet import in_time
from tests.obedient import Obedient, obedient
from tests.proxy import Proxy
from tests.proxy_holds import Seen, transactions
from tests.rolling import FIRST, SECOND, Rolling
from tests.servers import ConsulServer
from tests.services import service

KINDS = ("catalog", "rcs", "rollouts", "nodes")
HOSTS = {f"n{number}": f"10.0.0.{number + 1}" for number in range(6)}
REPLICAS = 3
GENEROUS = 30.0
"""Seconds within which an address is gone whatever else the machine does; bench C1 has the real figure."""


@pytest.fixture(scope="module")
def alone() -> Iterator[ConsulServer]:
    """A Consul that answers DNS, whose catalogue is this module's alone."""
    with ConsulServer(dev=True, dns=True, http_max_conns_per_client=10_000) as server:
        yield server


class World:
    """A controller with its service, agents that do as intents say, and the watch."""

    def __init__(self, rig: Rig, agents: Obedient, watch: Watch, item: str) -> None:
        self.rig, self.agents, self.watch, self.item = rig, agents, watch, item
        self.rolling = Rolling(rig.cluster, rig.address)

    async def settled(self, *without: str) -> None:
        """Return once readers find what serves, which are as many as there should be, and none of these."""
        avoided = {HOSTS[node] for node in without}

        async def so() -> bool:
            serves, *found = self.watch.now
            whole = len(serves) == REPLICAS - sum(node in self.agents.sick for node in without)
            if not (whole and found == [serves] * 2 and avoided.isdisjoint(serves)):
                return False
            now = await Reader(self.rig.address).passing(self.watch.name)
            return {address for address, _ in now} == serves

        await self.rig.until(so, f"readers that find {REPLICAS} pods, none on {without}: {self.watch.now}")

    async def placed(self) -> str:
        """A node whose pod serves."""
        serves = self.watch.now[0]
        return min(node for node, host in HOSTS.items() if host in serves)

    async def falls_ill(self) -> str:
        """A pod becomes unhealthy; its node."""
        node = await self.placed()
        self.agents.sick.add(node)
        return node

    async def recovers(self) -> None:
        self.agents.sick.clear()
        await self.settled()

    async def rollout(self) -> None:
        ident = await self.rolling.update(SECOND)
        await self.rolling.ended(ident)
        await self.rolling.whole(SECOND, REPLICAS)
        await self.settled()

    async def crash(self) -> None:
        await self.settled(await self.falls_ill())
        await self.recovers()

    async def drain(self) -> None:
        node, call = await self.placed(), self.rig.call()
        await self.rolling.say(await node_commands.drain(call, node, 600.0))
        await self.settled(node)

    async def absence(self) -> None:
        """An agent is away for a while: its pod is no endpoint, and is one again."""
        node, client, keys = await self.placed(), self.rig.client, self.rig.keys
        entry = await client.read(keys.agent(node))
        assert entry is not None
        await client.delete(entry.key)

        async def away() -> bool:
            return HOSTS[node] not in self.watch.now[1] | self.watch.now[2]

        await self.rig.until(away, f"{node} is not found while its agent is absent")
        agent = codec.decode(Agent, entry.value, entry.key)
        session = self.rig.cluster.nodes[node]
        await client.transaction([operations.lock(entry.key, codec.encode(agent), session.id)])
        await self.settled()

    async def edited(self) -> None:
        """Somebody registers wrong addresses over an entry, removes another one and its node."""
        reader, mark = Reader(self.rig.address), await cluster_id(self.rig.client, self.rig.keys)
        first, second, _ = sorted(node for node, host in HOSTS.items() if host in self.watch.now[0])
        ident = catalog.service_id(mark, self.item, first, "web")
        wrong = {"ID": ident, "Service": self.watch.name, "Address": "10.9.9.9", "Port": 9}
        body = {"Node": catalog.node_name(mark, first), "SkipNodeUpdate": True, "Service": wrong}
        await reader.ask("catalog/register", method="PUT", body=body)
        await self.settled()
        await reader.ask("catalog/deregister", method="PUT", body={"Node": catalog.node_name(mark, second)})
        await self.settled()


def _writes_catalogue(seen: Seen) -> bool:
    return transactions(seen) and b'"Check"' in seen.body


async def _killed(world: World, victim: Any) -> None:
    """A pod falls ill, and the farm is killed before it can have said so everywhere."""
    node = await world.falls_ill()
    await victim.end()
    await world.rig.expire("one")
    await world.settled(node)
    await world.recovers()


async def _frozen(world: World, frozen: Any, proxy: Proxy) -> None:
    """A farm freezes with a write on its way, which arrives after another farm took over."""
    hold = proxy.hold(_writes_catalogue)
    node = await world.falls_ill()
    await in_time(hold.reached.wait())
    await asyncio.to_thread(frozen.pause)
    await world.rig.farm("three", kinds=KINDS)
    await world.rig.expire("two", hold)
    await world.settled(node)
    await world.recovers()
    before = world.watch.answers[-1]
    hold.release()
    await in_time(hold.finished.wait())
    frozen.resume()
    await world.rig.present("two")
    assert world.watch.now[1] == before.what


async def test_r37_readers_find_no_pod_that_is_known_to_be_bad_and_never_none(
    alone: ConsulServer, nursery: Nursery, record_property: Any
) -> None:
    """Rollout, crash, drain, absence, edits by hand, a farm's kill, a frozen farm's late write."""
    async with rig_on(alone.address, nursery) as rig, Proxy(alone.address) as proxy:
        await rig.cluster.register_nodes(
            {node: Node(capacity={"cpu": 100.0}, address=host) for node, host in HOSTS.items()}
        )
        async with obedient(rig.cluster) as agents:
            agents.port = 20000
            rc = await rig.rc(REPLICAS, name="web", manifest=FIRST)
            item = await service(rig.call(), "rc/web", name=f"web-{rc.id}", catalog=Catalog())
            dns, name = (alone.host, alone.dns_port), f"web-{rc.id}"
            async with watched(alone.address, dns, rig.keys, name, HOSTS) as watch:
                world = World(rig, agents, watch, item)
                world.rolling.rc = rc
                one = rig.process("one", kinds=KINDS)
                await world.settled()
                await world.rollout()
                await world.crash()
                await world.drain()
                await world.absence()
                two = rig.process("two", proxy.address, kinds=KINDS)
                await rig.present("two")
                await _killed(world, one)
                await world.edited()
                await _frozen(world, two, proxy)
            took = watch.judge()
    record_property("seconds", [round(each, 3) for each in took])
    assert len(took) >= 4  # the drained pod, and each one that fell ill
    assert max(took) < GENEROUS, took
