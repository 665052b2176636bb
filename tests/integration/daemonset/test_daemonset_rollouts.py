"""Rollouts of daemon sets by farmctl, with a farm and simulated nodes on a real Consul."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from store import codec
from store.daemonsets import DaemonSet
from store.pods import Pod
from store.rollouts import History
from tests.farmctl import Farmctl, Result
from tests.fleet import Cluster, cluster_on, eventually, farm_on, in_time

FILE = {
    "name": "logs",
    "min_healthy_time": 0,
    "rollout": {"stages": [2, {"to": "100%", "approve": True}]},
    "canary_selector": "zone=lab",
    "pod": {"id": "logs", "command": ["first"]},
}
SECOND, THIRD = [{"id": "logs", "command": [word]} for word in ("second", "third")]


class People:
    """Somebody who types, while the fleet goes on."""

    def __init__(self, address: str, cluster: Cluster) -> None:
        self.cluster = cluster
        self._farmctl = Farmctl(address, cluster.keys.prefix)

    async def __call__(self, *arguments: str, **fields: Any) -> Result:
        stdin = yaml.safe_dump(FILE | fields) if "-f" in arguments else ""
        return await asyncio.to_thread(self._farmctl, *arguments, stdin=stdin)

    async def ok(self, *arguments: str, **fields: Any) -> Result:
        result = await self(*arguments, **fields)
        assert result.code == 0, result
        return result

    async def record(self) -> DaemonSet:
        (entry,) = (await self.cluster.entries(self.cluster.keys.tree("daemonsets"))).values()
        return codec.decode(DaemonSet, entry.value, entry.key)

    async def versions(self) -> dict[str, str]:
        """The manifest of the pod on each node."""
        daemonset = await self.record()
        found = await self.cluster.entries(self.cluster.keys.pods(daemonset.id))
        pods = {
            entry.key.split("/")[-2]: codec.decode(Pod, entry.value, entry.key) for entry in found.values()
        }
        return {node: pod.manifest for node, pod in pods.items()}

    async def renewed(self, *nodes: str, old: str) -> None:
        async def so() -> bool:
            return {node for node, sha in (await self.versions()).items() if sha != old} == set(nodes)

        await eventually(so, what=f"another version on {nodes}")

    async def status(self, said: str) -> None:
        async def says() -> bool:
            return said in (await self("rollout", "status", "logs")).out

        await eventually(says, what=f"a status of {said!r}")

    async def ended(self, outcome: str, number: int = 1) -> None:
        async def over() -> bool:
            found = await History(self.cluster.client, self.cluster.keys, "daemonsets").read("logs")
            return len(found.items) == number and found.items[0].record.outcome == outcome

        await eventually(over, what=f"{outcome} in the history")


@pytest.fixture
async def people(consul_dev: str) -> AsyncIterator[People]:
    async with cluster_on(consul_dev) as cluster:
        await cluster.add_nodes({"n1": {}, "n2": {}, "n3": {"zone": "lab"}, "n4": {}})
        stop = asyncio.Event()
        obeying = asyncio.create_task(cluster.obey(stop))
        async with farm_on(
            cluster.client, keys=cluster.keys, kinds=("rcs", "daemonsets", "rollouts", "apps")
        ):
            yield People(consul_dev, cluster)
        stop.set()
        await in_time(obeying)


async def test_a_rollout_over_nodes_waits_pauses_goes_on_ends_and_goes_back(people: People) -> None:
    await people.ok("daemonset", "create", "-f", "-", "--wait", "--timeout", "60s")
    first = (await people.record()).manifest

    begun = await people.ok("daemonset", "update", "-f", "-", pod=SECOND)
    assert "rollout/logs created" in begun.out, begun
    await people.status("stage 2 waits for farmctl rollout approve logs")
    await people.renewed("n1", "n3", old=first)
    refused = await people("daemonset", "update", "-f", "-", pod=THIRD)
    assert refused.code != 0
    assert "--supersede puts this version in its place" in refused.err
    await people.ok("daemonset", "update", "-f", "-", pod=SECOND)
    bad = (await people.record()).coming
    told = await people.ok("daemonset", "update", "-f", "-", "--supersede", "-y", pod=THIRD)
    assert "then the stages begin again; min_health pods of all versions stay available" in told.err
    await people.status("stage 2 waits for farmctl rollout approve logs")
    await people.renewed("n1", "n3", old=first)
    assert bad not in (await people.versions()).values()
    await people.ok("daemonset", "update", "-f", "-", "--supersede", "-y", pod=SECOND)
    await people.status("stage 2 waits for farmctl rollout approve logs")

    await people.ok("rollout", "pause", "logs")
    await people.status("paused; farmctl rollout resume logs")
    await people.ok("rollout", "resume", "logs")
    await people.status("stage 2 waits for farmctl rollout approve logs")
    await people.ok("rollout", "approve", "logs")
    await people.ended("done")
    daemonset = await people.record()
    assert set((await people.versions()).values()) == {daemonset.manifest}
    assert (daemonset.coming, daemonset.managed_by, daemonset.needs) == ("", "", [])

    await people.ok("daemonset", "update", "-f", "-", pod=THIRD)
    await people.status("stage 2 waits for farmctl rollout approve logs")
    await people.ok("rollout", "revert", "logs", "-y", "--wait", "--timeout", "60s")
    await people.ended("reverted", 2)
    assert set((await people.versions()).values()) == {daemonset.manifest}
    told = await people.ok("rollout", "history", "logs")
    assert "reverted" in told.out
    assert "done" in told.out


async def test_apply_brings_a_new_version_by_a_rollout_and_waits_for_it(
    people: People, tmp_path: Path
) -> None:
    file = tmp_path / "logs.yaml"

    async def apply(pod: dict[str, Any]) -> Result:
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "farmd/v1",
                    "kind": "daemonset",
                    **FILE,
                    "rollout": {"stages": ["100%"]},
                    "pod": pod,
                }
            )
        )
        return await people.ok("apply", "--app", "shop", "-f", str(file), "-y", "--wait", "--timeout", "60s")

    await apply({"id": "logs", "command": ["first"]})
    first = (await people.record()).manifest
    await apply(SECOND)
    daemonset = await people.record()
    assert (daemonset.coming, daemonset.managed_by) == ("", "")
    assert daemonset.manifest != first
    assert set((await people.versions()).values()) == {daemonset.manifest}
    await people.ended("done")
