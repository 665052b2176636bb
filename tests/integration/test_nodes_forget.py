"""Forgetting a node on a real Consul while farms look after it, and its agent's return as a new one's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.manifests import Manifest
from tests.agents import Agents
from tests.farmctl import Farmctl
from tests.fleet import Cluster, RunningFarm, cluster_on, eventually, start_farm

NODES = ("n1", "n2", "n3", "n4", "n5")
HELLO = Manifest(id="hello", command=["sleep", "1000"])


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({name: {"name": name} for name in NODES})
        stop = asyncio.Event()
        agents = asyncio.create_task(made.obey(stop))
        try:
            yield made
        finally:
            stop.set()
            await agents


@pytest.fixture
async def farms(cluster: Cluster) -> AsyncIterator[list[RunningFarm]]:
    started = [
        await start_farm(
            cluster.client, name, keys=cluster.keys, seed=seed, kinds=("rcs", "nodes"), lost_after=1.0
        )
        for seed, name in enumerate(("one", "two"))
    ]
    try:
        yield started
    finally:
        for farm in started:
            await farm.close()


async def of_node(cluster: Cluster, name: str) -> list[str]:
    """The keys that bear a node's name, sentinels and locks too."""
    page = await cluster.client.keys(cluster.keys.prefix, mode="consistent")
    return sorted(key for key in page.items if name in key.split("/") and "/audit/" not in key)


async def test_r20_a_lost_node_is_forgotten_under_running_farms_and_registers_anew_when_it_is_back(
    cluster: Cluster, farms: list[RunningFarm], consul_dev: str, tmp_path: Path
) -> None:
    keys, farmctl = cluster.keys, Farmctl(consul_dev, cluster.keys.prefix)

    async def owners(name: str) -> int:
        return sum(name in farm.owned for farm in farms)

    async def converged() -> bool:
        return (await cluster.status(web)).healthy == 4

    web = await cluster.create_rc("web", 4, manifest=HELLO)
    await eventually(converged, what="four healthy pods")
    gone = min(node for node, _ in await cluster.pods(web.id))
    there = await asyncio.to_thread(farmctl, "node", "forget", gone, "-y")
    assert (there.code, "its agent is running" in there.err) == (5, True)

    await cluster.lose_agents(gone)

    async def replaced() -> bool:
        intents = {node for node, _ in await cluster.intents()}
        return gone not in intents and await converged()

    await eventually(replaced, what="all pods of the lost node elsewhere")
    await cluster.client.put(keys.reality(gone, "old"), b'{"manifest": "m"}')
    done = await asyncio.to_thread(
        lambda: farmctl.ok("node", "forget", f"node/{gone}", "-y", "--reason", "burnt")
    )
    assert f"node/{gone} forgotten" in done.out

    async def released() -> bool:
        return not await owners(gone) and not await of_node(cluster, gone)

    await eventually(released, what="the farms to let go of it, and nothing to be left")
    assert [r.reason for r in await cluster.audits() if r.action == "node.forget"] == ["burnt"]
    told = [alerts for farm in farms for alerts in (farm.alerts.firing, farm.alerts.resolved)]
    assert f"node_lost_{gone}" in {*told[1], *told[3]}
    assert not {f"node_lost_{gone}"} & {*told[0], *told[2]}
    assert gone not in (await asyncio.to_thread(lambda: farmctl.ok("node", "list", "-o", "name"))).out

    rig = Agents(cluster.client, keys, address=consul_dev, root=tmp_path)
    agent = await rig.agent(gone)
    try:

        async def registered() -> bool:
            known = await cluster.client.read(keys.sentinel(keys.intents(gone)))
            return known is not None and await owners(gone) == 1

        await eventually(registered, what="the node to be taken as a new one")
        assert (
            f"node/{gone}" in (await asyncio.to_thread(lambda: farmctl.ok("node", "list", "-o", "name"))).out
        )
        assert not await cluster.entries(keys.work("nodes", gone))
    finally:
        await agent.close()
