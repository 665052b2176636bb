"""Fixed ports on a real Consul: owners of all kinds share those of a node, and refusals name a holder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from farmd.commands.mutation import Call
from farmd.commands.noun import Noun, explain
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC
from farmd.runtime.clock import SystemIds
from store import codec, manifests, operations
from store.daemonsets import DaemonSet
from store.manifests import Manifest, Port
from store.pods import Place
from store.rcs import ReplicationController
from store.status import Status
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, start_farm

NODES = ("n1", "n2", "n3")
KINDS = ("rcs", "daemonsets")
HELD = "port 8077/tcp is held by {}"


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({name: {} for name in NODES})
        yield made


@pytest.fixture
async def farms(cluster: Cluster) -> AsyncIterator[list[RunningFarm]]:
    running = [
        await start_farm(cluster.client, name, keys=cluster.keys, kinds=KINDS, seed=at)
        for at, name in enumerate(("farm-1", "farm-2"))
    ]
    yield running
    for farm in running:
        await farm.close()


async def create(cluster: Cluster, name: str, kind: str, **fields: Any) -> str:
    """An owner of pods that want port 8077; one controller more than there are nodes."""
    body = manifests.canonical(Manifest(id=name, command=["serve"], ports={"http": Port(8077)}))
    common = {"id": f"{len(name):x}{ord(name[0]):x}" * 4, "name": name, "manifest": manifests.digest(body)}
    record: Any = (
        DaemonSet(**common, pod_id=name, min_healthy_time=0.0, **fields)
        if kind == "daemonsets"
        else ReplicationController(**common, pod_id=name, replicas_desired=len(NODES), min_healthy_time=0.0)
    )
    await cluster.client.transaction(
        [
            operations.put(cluster.keys.manifest(common["manifest"]), body),
            operations.create(cluster.keys.record(kind, record.id), codec.encode(record)),
            operations.create(cluster.keys.name(kind, name), codec.encode(record.id)),
        ]
    )
    return str(record.id)


async def places(cluster: Cluster) -> Mapping[Place, str]:
    """All pods, which all want the port, with their owners."""
    found = await cluster.entries(cluster.keys.tree("pods"))
    parts = [cluster.keys.pod_parts(key) for key in found]
    nodes = [node for _, node, _ in parts]
    assert len(nodes) == len(set(nodes)), f"a port was given twice: {parts}"
    return {(node, instance): owner for owner, node, instance in parts}


async def told(cluster: Cluster, noun: Noun[Any, Any], name: str) -> dict[str, list[str]]:
    """What ``explain`` says of each node."""
    record = (await noun.records(cluster.client, cluster.keys).find(name)).record
    call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@test")
    ((_, found),) = await explain(call, noun, record)
    return {each.node: [reason.text for reason in each.reasons] for each in found.verdicts}


@pytest.mark.parametrize("kinds", [("rcs", "rcs"), ("rcs", "daemonsets"), ("daemonsets", "daemonsets")])
async def test_r17_of_two_owners_that_want_a_port_of_every_node_each_node_has_one(
    cluster: Cluster, farms: list[RunningFarm], kinds: tuple[str, str]
) -> None:
    first, second = await asyncio.gather(create(cluster, "web", kinds[0]), create(cluster, "proxy", kinds[1]))
    nouns = {first: RC if kinds[0] == "rcs" else DAEMON_SET, second: RC if kinds[1] == "rcs" else DAEMON_SET}
    names = {first: "web", second: "proxy"}

    async def full() -> bool:
        return len(await places(cluster)) == len(NODES)

    await eventually(full, what="a pod on every node")
    stand = await places(cluster)
    for owner, other in ((first, second), (second, first)):
        verdicts = await told(cluster, nouns[owner], names[owner])
        for (node, instance), holder in stand.items():
            if holder == other:
                assert HELD.format(instance) in verdicts[node]


async def test_r17_a_daemon_set_says_where_a_port_is_held_and_gets_it_once_it_is_free(
    cluster: Cluster, farms: list[RunningFarm]
) -> None:
    rc = await create(cluster, "web", "rcs")

    async def full() -> bool:
        return len(await places(cluster)) == len(NODES)

    await eventually(full, what="a pod on every node")
    daemonset = await create(cluster, "proxy", "daemonsets")

    async def says() -> Status | None:
        entry = await cluster.client.read(cluster.keys.status("daemonsets", daemonset))
        status = codec.decode(Status, entry.value, entry.key) if entry is not None else None
        return status if status is not None and "port 3" in status.reason else None

    assert (await eventually(says, what="a status")).state == "blocked"
    stored = await RC.records(cluster.client, cluster.keys).get(rc)
    await cluster.change_rc(stored.record, replicas_desired=1)

    async def shared() -> bool:
        owners = list((await places(cluster)).values())
        return (owners.count(rc), owners.count(daemonset)) == (1, 2)

    await eventually(shared, what="two pods of the daemon set")

    async def remarks() -> bool:
        entry = await cluster.client.read(cluster.keys.status("daemonsets", daemonset))
        assert entry is not None
        reason = codec.decode(Status, entry.value, entry.key).reason
        return reason == "not on 1 node where a fixed port is held"

    stop = asyncio.Event()
    obeying = asyncio.create_task(cluster.obey(stop))
    await eventually(remarks, what="a remark of the node without it")
    stop.set()
    await obeying
