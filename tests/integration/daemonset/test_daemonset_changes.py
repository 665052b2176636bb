"""How a daemon set brings a new manifest to its nodes, and at which pace."""

from __future__ import annotations

import asyncio

from store import manifests
from store.daemonsets import DaemonSet
from store.manifests import Manifest
from tests.fleet import Cluster, RunningFarm, eventually, in_time
from tests.integration.daemonset.sets import GOOD, change, consistent, create, said, status

NEWER = Manifest(id="hello", command=["sleep", "2000"])


async def renew(cluster: Cluster, daemonset: DaemonSet) -> DaemonSet:
    body = manifests.canonical(NEWER)
    sha = manifests.digest(body)
    await cluster.client.put(cluster.keys.manifest(sha), body)
    return await change(cluster, daemonset, manifest=sha)


async def test_a_new_manifest_reaches_every_node_in_place(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(5)})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    renewed = await renew(cluster, daemonset)

    async def everywhere() -> bool:
        found = await status(cluster, renewed)
        return found.state == "converged" and {i.manifest for i in (await cluster.intents()).values()} == {
            renewed.manifest
        }

    await eventually(everywhere)
    replaced = [a for a in await cluster.audits() if a.action == "pods.replace"]
    # All but one stay healthy, so it is one after the other.
    assert [len(audit.relabelled) for audit in replaced] == [1] * 5
    await consistent(cluster, renewed)


async def test_min_health_holds_back_what_nobody_proved(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(4)})
    daemonset = await create(cluster, min_health="50%")
    stop = asyncio.Event()
    obeying = asyncio.create_task(cluster.obey(stop))
    await said(cluster, daemonset, "converged")
    stop.set()
    await in_time(obeying)
    # From now on nodes take nothing up: half of the pods may be changed, and not one more.
    renewed = await renew(cluster, daemonset)
    found = await said(cluster, renewed, "progressing", "min_health keeps 2")
    assert found.outdated == 2
    newer = [i for i in (await cluster.intents()).values() if i.manifest == renewed.manifest]
    assert len(newer) == 2


async def test_the_rate_spreads_placements_over_time(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(5)})
    daemonset = await create(cluster, rate=2)
    found = await said(cluster, daemonset, "progressing", "at most 2 nodes per minute")
    assert (found.desired, found.placed) == (5, 2)
