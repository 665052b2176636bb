"""What steps of a move rest on at the very moment when they are written: a node's verdict, their own room."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from store import codec, operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.manifests import Manifest
from store.nodes import Node, Reserved
from store.ports import Request
from store.rcs import ReplicationController
from store.work import Work
from tests.fleet import CLOCK, Cluster, cluster_on, eventually, farm_on
from tests.obedient import Obedient, obedient
from tests.toys import Faulty, is_transaction

# Asking for none of something is asking for nothing.
ASKING = Manifest(id="hello", command=["sleep", "1000"], resources={"cpu": 1.0, "gpu": 0.0})
NODES = ["n0", "n1", "n2"]


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({name: {} for name in NODES})
        for name in NODES:
            await label(made, name, "good")
        yield made


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[Obedient]:
    async with obedient(cluster) as made:
        yield made


async def label(cluster: Cluster, node: str, quality: str) -> None:
    await cluster.put(cluster.keys.node(node), Node(labels={"q": quality}, capacity={"cpu": 1.0}))


async def on(cluster: Cluster, rc: ReplicationController) -> list[str]:
    return [node for node, _ in await cluster.pods(rc.id)]


async def two_healthy(cluster: Cluster) -> tuple[ReplicationController, str, str]:
    """A controller with two pods, one that will move, and the one node that it can move to."""
    rc = await cluster.create_rc("hello", 2, manifest=ASKING, strategy="dynamic", node_selector="q=good")

    async def converged() -> bool:
        entry = await cluster.client.read(cluster.keys.status("rcs", rc.id))
        return entry is not None and b'"state":"converged"' in entry.value

    await eventually(converged, what="converged")
    old, _ = await on(cluster, rc)
    (spare,) = set(NODES) - set(await on(cluster, rc))
    return rc, old, spare


async def move_over(cluster: Cluster, rc: ReplicationController, old: str) -> None:
    async def over() -> bool:
        entry = await cluster.client.read(cluster.keys.work("rcs", rc.id))
        moving = entry is not None and codec.decode(Work, entry.value, entry.key).transfer is not None
        stand = await on(cluster, rc)
        return not moving and len(stand) == 2 and old not in stand

    await eventually(over, what="the move is over")


async def test_r21_a_move_ends_by_a_verdict_only_while_that_holds(
    cluster: Cluster, agents: Obedient, consul_dev: str
) -> None:
    """The old pod of a lost node goes before the new one is healthy; not if the node is back by then."""
    transport = Faulty(HttpTransport(Address.from_environment({}, consul_dev)))
    client = ConsulClient(transport, clock=CLOCK)
    tried: list[float] = []
    async with farm_on(client, "farm-1", keys=cluster.keys):
        rc, old, spare = await two_healthy(cluster)
        agents.deaf.add(spare)
        await label(cluster, old, "bad")

        async def both() -> bool:
            return len(await on(cluster, rc)) == 3

        await eventually(both, what="the new pod beside the old")
        verdict = cluster.keys.work("nodes", old)

        async def come_back(request: Request) -> None:
            leaves = f"pods/{rc.id}/{old}/".encode() in request.body
            if is_transaction(request) and leaves and not tried:
                tried.append(CLOCK.now())
                await cluster.client.delete(verdict)

        transport.before = come_back
        await cluster.put(verdict, Work(absent_since=CLOCK.now() - 60, lost_since=CLOCK.now()))

        async def attempted() -> list[float]:
            return tried

        await eventually(attempted, what="the old pod is about to go")
        arrived = CLOCK.now()
        agents.deaf.clear()
        await move_over(cluster, rc, old)
    await client.close()
    (finish,) = [audit for audit in await cluster.audits() if audit.action == "transfer.finish"]
    assert finish.at >= arrived


async def test_r17_a_move_whose_room_was_given_away_is_called_off(
    cluster: Cluster, agents: Obedient, consul_dev: str
) -> None:
    """Its room vanished between reserving and placing, and somebody else has it: never over capacity."""
    transport = Faulty(HttpTransport(Address.from_environment({}, consul_dev)))
    client = ConsulClient(transport, clock=CLOCK)
    robbed: list[str] = []
    async with farm_on(client, "farm-1", keys=cluster.keys):
        rc, old, spare = await two_healthy(cluster)
        book = cluster.keys.reserved(spare)

        async def rob(request: Request) -> None:
            places = f"pods/{rc.id}/{spare}/".encode() in request.body
            if is_transaction(request) and places and not robbed:
                robbed.append(spare)
                entry = await cluster.client.read(book)
                assert entry is not None
                theirs = msgspec.structs.replace(
                    codec.decode(Reserved, entry.value, book), instances={"other": {"cpu": 1.0}}
                )
                await cluster.client.transaction(
                    [operations.cas(book, codec.encode(theirs), entry.modify_index)]
                )

        transport.before = rob
        await label(cluster, old, "bad")

        async def called_off() -> bool:
            return any(audit.action == "transfer.cancel" for audit in await cluster.audits())

        await eventually(called_off, what="the move is called off")
        entry = await cluster.client.read(book)
        assert entry is not None
        assert codec.decode(Reserved, entry.value, book).instances == {"other": {"cpu": 1.0}}
        assert old in await on(cluster, rc)
        assert spare not in await on(cluster, rc)
    await client.close()
