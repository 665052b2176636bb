"""farmctl daemonset as a process, with a farm and simulated nodes on a real Consul."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.farmctl import Farmctl, Result
from tests.fleet import Cluster, cluster_on, farm_on, in_time

FILE = {
    "name": "logs",
    "node_selector": "role=web",
    "min_health": "50%",
    "min_healthy_time": 0,
    "pod": {"id": "logs", "command": ["ship"]},
}
WEB, DB = {"role": "web"}, {"role": "db"}


class People:
    """Somebody who types, while the fleet goes on."""

    def __init__(self, address: str, cluster: Cluster) -> None:
        self._farmctl = Farmctl(address, cluster.keys.prefix)

    async def __call__(self, *arguments: str, **fields: Any) -> Result:
        stdin = yaml.safe_dump(FILE | fields) if "-f" in arguments else ""
        return await asyncio.to_thread(self._farmctl, *arguments, stdin=stdin)

    async def ok(self, *arguments: str, **fields: Any) -> Result:
        result = await self(*arguments, **fields)
        assert result.code == 0, result
        return result


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({"n1": WEB, "n2": WEB, "n3": DB})
        stop = asyncio.Event()
        obeying = asyncio.create_task(made.obey(stop))
        async with farm_on(made.client, keys=made.keys, kinds=("rcs", "daemonsets")):
            yield made
        stop.set()
        await in_time(obeying)


@pytest.mark.slow
async def test_a_daemon_sets_life_in_commands(consul_dev: str, cluster: Cluster, tmp_path: Path) -> None:
    farmctl = People(consul_dev, cluster)
    made = await farmctl.ok("daemonset", "create", "-f", "-", "--wait", "--timeout", "150s")
    assert made.out.startswith("daemonset/logs created (")
    assert "2 of 2 placed, 2 healthy; converged" in made.err
    listed = await farmctl.ok("daemonset", "list")
    assert listed.out.splitlines()[1].split()[1:7] == ["2", "2", "2", "0", "2", "converged"]
    pods = await farmctl.ok("daemonset", "pods", "logs", "-o", "name")
    assert pods.out.split() == ["pod/n1/logs", "pod/n2/logs"]
    everywhere = await farmctl.ok("pod", "list")
    assert [line.split()[:3] for line in everywhere.out.splitlines()] == [
        ["NODE", "INSTANCE", "OWNER"],
        ["n1", "logs", "daemonset/logs"],
        ["n2", "logs", "daemonset/logs"],
    ]

    described = await farmctl.ok("daemonset", "describe", "logs")
    assert "Stay healthy:  50%" in described.out
    assert "daemonset.create" in described.out
    assert "pods.place" in described.out

    spec = await farmctl.ok("daemonset", "get", "logs", "--file")
    (tmp_path / "logs.yaml").write_text(spec.out)
    same = await farmctl.ok("daemonset", "create", "-f", str(tmp_path / "logs.yaml"))
    assert same.out.startswith("daemonset/logs unchanged")

    pod = {"id": "logs", "command": ["ship", "--all"]}
    updated = await farmctl.ok("daemonset", "update", "-f", "-", "--now", "--wait", "-y", pod=pod)
    assert "pod.command" in updated.err
    shown = (await farmctl.ok("daemonset", "get", "logs", "-o", "json")).json
    assert shown["kind"] == "DaemonSet"
    assert {intent.manifest for intent in (await cluster.intents()).values()} == {shown["manifest"]}

    wider = await farmctl.ok(
        "daemonset", "update", "-f", "-", "--now", "--wait", "-y", pod=pod, node_selector=""
    )
    assert "3 of 3 placed, 3 healthy; converged" in wider.err

    refused = await farmctl("daemonset", "delete", "logs", "-y")
    assert (refused.code, "has 3 pods, expected 0" in refused.err) == (5, True)
    gone = await farmctl.ok("daemonset", "delete", "logs", "--cascade", "-y", "--reason", "over")
    assert "daemonset/logs deleted" in gone.out
    assert (await farmctl.ok("daemonset", "list", "-o", "name")).out == ""
    assert await cluster.intents() == {}
    history = await farmctl.ok("audit", "list", "--kind", "daemonsets", "-o", "json")
    actions = [record["action"] for record in history.json["items"]]
    assert actions[0] == "daemonset.delete"
    assert {"daemonset.create", "daemonset.update", "daemonset.mark-deleted", "pods.remove"} <= set(actions)


async def test_disable_keeps_pods_and_a_wait_that_cannot_end_says_why(
    consul_dev: str, cluster: Cluster
) -> None:
    farmctl = People(consul_dev, cluster)
    stuck = await farmctl(
        "daemonset", "create", "-f", "-", "--wait", "--timeout", "10s", node_selector="role=wbe"
    )
    assert stuck.code == 8
    assert "no node is eligible (3 nodes: selector 3)" in stuck.err
    await farmctl.ok("daemonset", "update", "-f", "-", "--now", "--wait", "-y")
    disabled = await farmctl.ok("daemonset", "disable", "logs")
    assert "daemonset/logs disabled" in disabled.out
    assert len(await cluster.intents()) == 2
    assert (await farmctl("daemonset", "describe", "nothing")).code == 4
    dry = await farmctl.ok("daemonset", "delete", "logs", "--cascade", "--dry-run")
    assert "removes 2 pods" in dry.out
    assert len(await cluster.intents()) == 2
