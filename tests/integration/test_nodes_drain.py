"""Drains on a real Consul: what farmctl shows, that pods move, and that a killed farm's drain goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import codec
from store.manifests import Manifest
from store.nodes import Drain, Node, NodeStatus
from tests.farmctl import Farmctl, Result
from tests.fleet import Cluster, cluster_on, eventually, farm_on
from tests.processes import Program

NODES = ("n1", "n2", "n3", "n4", "n5")
KINDS = ("rcs", "nodes")
HELLO = Manifest(id="hello", command=["sleep", "1000"])
LOGS = Manifest(id="logs", command=["sleep", "1000"], system=True)


class Fleet:
    """Nodes that obey, and a person with farmctl."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self._farmctl = Farmctl(address, cluster.keys.prefix)

    async def run(self, *arguments: str) -> Result:
        return await asyncio.to_thread(self._farmctl, *arguments)

    async def ok(self, *arguments: str) -> Result:
        return await asyncio.to_thread(lambda: self._farmctl.ok(*arguments))

    async def node(self, name: str) -> Node:
        key = self.cluster.keys.node(name)
        entry = await self.cluster.client.read(key)
        assert entry is not None
        return codec.decode(Node, entry.value, key)

    async def stage(self, name: str) -> str:
        drain = (await self.node(name)).drain
        return drain.stage if drain is not None else ""

    async def status(self, name: str) -> NodeStatus | None:
        key = self.cluster.keys.status("nodes", name)
        entry = await self.cluster.client.read(key)
        return None if entry is None else codec.decode(NodeStatus, entry.value, key)

    async def left(self, name: str, count: int) -> NodeStatus:
        async def says() -> NodeStatus | None:
            status = await self.status(name)
            return status if status is not None and status.left == count else None

        return await eventually(says, what=f"the drain of {name} waits for {count}")

    async def reaches(self, name: str, stage: str) -> None:
        async def reached() -> bool:
            return await self.stage(name) == stage

        await eventually(reached, what=f"{name} in stage {stage}")

    async def stands(self, count: int, owner: str) -> None:
        async def enough() -> bool:
            return len(await self.cluster.pods(owner)) == count

        await eventually(enough, what=f"{count} pods of {owner}")

    async def leave(self, node: str, owner: str, instance: str) -> None:
        """Take a pod away by hand, as its controller's worker would."""
        keys = self.cluster.keys
        for key in (keys.pod(owner, node, instance), keys.intent(node, instance)):
            await self.cluster.client.delete(key)


@pytest.fixture
async def fleet(consul_dev: str) -> AsyncIterator[Fleet]:
    async with cluster_on(consul_dev) as cluster:
        await cluster.add_nodes({name: {"name": name} for name in NODES})
        stop = asyncio.Event()
        agents = asyncio.create_task(cluster.obey(stop))
        try:
            yield Fleet(cluster, consul_dev)
        finally:
            stop.set()
            await agents


async def test_a_drain_moves_all_pods_the_systems_last(fleet: Fleet) -> None:
    cluster = fleet.cluster
    async with farm_on(cluster.client, "one", keys=cluster.keys, kinds=KINDS):
        web = await cluster.create_rc("web", 3, manifest=HELLO)
        logs = await cluster.create_rc("logs", 3, manifest=LOGS)
        await fleet.stands(3, web.id)
        await fleet.stands(3, logs.id)

        async def healthy() -> bool:
            return (await cluster.status(web)).healthy == 3 == (await cluster.status(logs)).healthy

        await eventually(healthy, what="six healthy pods")
        both = {node for node, _ in await cluster.pods(web.id)} & {
            node for node, _ in await cluster.pods(logs.id)
        }
        node = min(both)

        looked = await fleet.ok("node", "drain", node, "--dry-run")
        assert "moves: hello (rc/web)" in looked.out
        assert "moves last, a system pod: logs (rc/logs)" in looked.out
        assert await fleet.stage(node) == ""
        [item] = (await fleet.ok("node", "drain", node, "--dry-run", "-o", "json")).json["items"]
        [foretold] = [move["to"] for move in item["outlook"]["moves"] if move["from"]["instance"] == "hello"]

        done = await fleet.ok("node", "drain", node, "--deadline", "5m", "--wait", "--timeout", "150s")
        assert f"node/{node} draining" in done.out
        lines = [line for line in done.err.splitlines() if line.startswith(f"node/{node}: ")]
        assert lines[-1] == f"node/{node}: drained"
        assert any("pods left" in line or "pod left" in line for line in lines)
        assert not [place for place in await cluster.intents() if place[0] == node]
        assert (foretold["node"], foretold["instance"]) in await cluster.pods(web.id)
        assert (len(await cluster.pods(web.id)), len(await cluster.pods(logs.id))) == (3, 3)

        removed = [
            (record.id, pod) for record in await cluster.audits() for pod in record.removed if node in pod
        ]
        assert [owner for owner, _ in removed] == [web.id, logs.id]
        assert f"{node}    ready,drained" in (await fleet.ok("node", "list")).out
        await fleet.ok("node", "undrain", node)
        assert await fleet.node(node) == Node(labels={"name": node})


async def test_farmctl_shows_a_drain_and_what_keeps_it_and_gives_up_with_8(fleet: Fleet) -> None:
    cluster = fleet.cluster
    async with farm_on(cluster.client, "one", keys=cluster.keys, kinds=("nodes",)):
        rc = await cluster.create_rc("web", 1, manifest=HELLO, disabled=True)
        await cluster.put(cluster.keys.intent("n1", "hello"), {"manifest": rc.manifest, "owner": rc.id})
        late = await fleet.run("node", "drain", "n1", "--deadline", "1s", "--wait", "--timeout", "12s")
        assert late.code == 8
        assert "is not drained after 12 s: 1 pod left" in late.err
        assert "past its deadline" in late.err
        assert "rc/web: disabled, so its pods stay" in late.err
        assert "or end it with farmctl node undrain n1" in late.err
        listed = (await fleet.ok("node", "list")).out
        assert "ready,draining 1 left" in listed
        assert "past its deadline; rc/web: disabled, so its pods stay" in listed
        shown = (await fleet.ok("node", "describe", "n1")).out
        assert "Drain:      stage pods, asked" in shown
        assert "(past)" in shown
        assert "Waits for:  rc/web: disabled" in shown
        data = (await fleet.ok("node", "describe", "n1", "-o", "json")).json
        assert (data["state"], data["left"]) == ("ready,draining", 1)
        await fleet.ok("node", "uncordon", "n1")
        assert await fleet.stage("n1") == ""


async def test_farmctl_shows_absent_and_lost_nodes(fleet: Fleet) -> None:
    cluster = fleet.cluster
    async with farm_on(cluster.client, "one", keys=cluster.keys, kinds=KINDS, lost_after=1.0):
        await cluster.lose_agents("n1")

        async def shown() -> bool:
            return "n1    lost" in (await fleet.ok("node", "list")).out

        await eventually(shown, what="n1 shown as lost")
        assert "not connected since 20" in (await fleet.ok("node", "describe", "n1")).out
        assert "n2    ready" in (await fleet.ok("node", "list")).out


async def test_a_drain_waits_for_nobody_when_no_farm_is_there(fleet: Fleet) -> None:
    late = await fleet.run("node", "drain", "n1", "--wait", "--timeout", "1s")
    assert late.code == 8
    assert "no farm claims nodes" in late.err


@pytest.mark.slow
async def test_a_drain_goes_on_after_kill_9_of_the_farm(
    fleet: Fleet, tmp_path: Path, consul_dev: str
) -> None:
    cluster, keys = fleet.cluster, fleet.cluster.keys
    web = await cluster.create_rc("web", 1, manifest=HELLO, disabled=True)
    logs = await cluster.create_rc("logs", 1, manifest=LOGS, disabled=True)
    for rc in (web, logs):
        await cluster.put(keys.intent("n1", rc.pod_id), {"manifest": rc.manifest, "owner": rc.id})
    variables = {
        "CONSUL_HTTP_ADDR": consul_dev,
        "FARMD_STORE__PREFIX": keys.prefix,
        "FARMD_FARM__NAME": "doomed",
        "FARMD_FARM__KINDS": "nodes",
        "FARMD_WEB__FARM_PORT": "0",
    }
    with Program("run", folder=tmp_path, **variables) as doomed:
        await asyncio.to_thread(doomed.wait_for, "farm.ready")
        await fleet.ok("node", "drain", "n1", "--deadline", "1h")
        await fleet.left("n1", 2)
        await fleet.leave("n1", web.id, web.pod_id)
        await fleet.reaches("n1", "system")
        doomed.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(doomed.process.wait)
    await fleet.leave("n1", logs.id, logs.pod_id)
    assert await fleet.stage("n1") == "system"
    async with farm_on(cluster.client, "heir", keys=keys, kinds=("nodes",)):
        await fleet.reaches("n1", "done")
    drain = (await fleet.node("n1")).drain
    assert isinstance(drain, Drain)
    stages = [
        r.after["drain"] for r in await cluster.audits() if r.action == "node.drain" and "drain" in r.after
    ]
    assert stages == ["pods", "system", "done"]
