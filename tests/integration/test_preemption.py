"""Preemption on a real Consul: one farm waits for room, another makes it, and nobody breaks a floor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from store import codec
from store.checkpoint import replayed
from store.manifests import Manifest
from store.nodes import Node, Nomination, Reserved
from store.rcs import ReplicationController
from tests.fleet import Cluster, RunningFarm, cluster_on, eventually, farm_on
from tests.obedient import Obedient, obedient

NODES = [f"n{number}" for number in range(3)]


def manifest(name: str, cpu: float, priority: int) -> Manifest:
    return Manifest(id=name, command=["sleep", "1000"], resources={"cpu": cpu}, priority=priority)


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({name: {} for name in NODES})
        for name in NODES:
            await made.put(made.keys.node(name), Node(capacity={"cpu": 2.0}))
        yield made


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[Obedient]:
    async with obedient(cluster) as made:
        yield made


@asynccontextmanager
async def two_farms(cluster: Cluster) -> AsyncIterator[tuple[RunningFarm, RunningFarm]]:
    """Two farms that preempt, so that the two sides of it may well be in different hands."""
    async with (
        farm_on(cluster.client, "farm-1", keys=cluster.keys, preemption=True) as one,
        farm_on(cluster.client, "farm-2", keys=cluster.keys, preemption=True) as other,
    ):
        yield one, other


async def create(
    cluster: Cluster, name: str, replicas: int, cpu: float, priority: int, **fields: object
) -> ReplicationController:
    return await cluster.create_rc(name, replicas, manifest=manifest(name, cpu, priority), **fields)


async def on(cluster: Cluster, rc: ReplicationController) -> list[str]:
    return [node for node, _ in await cluster.pods(rc.id)]


async def books(cluster: Cluster) -> dict[str, Reserved]:
    found = await cluster.entries(cluster.keys.tree("reserved"))
    return {cluster.keys.last_part(key): codec.decode(Reserved, e.value, key) for key, e in found.items()}


async def nominations(cluster: Cluster) -> dict[str, dict[str, Nomination]]:
    return {node: book.nominations for node, book in (await books(cluster)).items() if book.nominations}


async def says(cluster: Cluster, rc: ReplicationController, *words: str) -> str:
    async def said() -> str:
        reason = (await cluster.status(rc)).reason
        return reason if all(word in reason for word in words) else ""

    return str(await eventually(said, within=20, what=f"{rc.name} says {words}"))


async def is_converged(cluster: Cluster, *controllers: ReplicationController) -> None:
    async def all_are() -> bool:
        return all([(await cluster.status(rc)).state == "converged" for rc in controllers])

    await eventually(all_are, within=20, what="converged")


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    await eventually(condition, within=20, what=what)


async def actions(cluster: Cluster, rc: ReplicationController) -> list[str]:
    return [audit.action for audit in await cluster.audits() if audit.id == rc.id]


async def within_capacity(cluster: Cluster) -> None:
    """No node promises more than it has, and the history tells every pod."""
    for node, book in (await books(cluster)).items():
        assert sum(amounts["cpu"] for amounts in book.instances.values()) <= 2.0, node
    found = await replayed(cluster.client, cluster.keys)
    stand = {cluster.keys.pod_parts(key) for key in await cluster.entries(cluster.keys.tree("pods"))}
    assert {(key.owner, key.node, key.instance) for key in found.pods} == stand


async def test_a_pod_of_higher_priority_gets_the_room_and_the_lower_one_moves_before_it_breaks(
    cluster: Cluster, agents: Obedient
) -> None:
    async with two_farms(cluster):
        low = await create(cluster, "low", 2, 1.0, 20)
        await is_converged(cluster, low)
        # Every node has a processor free at least, none of those that run the low pods has two.
        mid = await create(cluster, "mid", 1, 1.0, 50)
        await is_converged(cluster, mid)
        high = await create(cluster, "high", 1, 2.0, 80)
        await is_converged(cluster, high, low, mid)
        assert len(set(await on(cluster, low))) == 2
        assert await nominations(cluster) == {}
        told = await actions(cluster, low)
        assert told[-3:] == ["transfer.start", "transfer.place", "transfer.finish"]
        assert [a.reason for a in await cluster.audits() if a.action == "transfer.finish"] == ["preempted"]
        assert await actions(cluster, high) == ["preemption.nominate", "pods.place"]
        await within_capacity(cluster)
