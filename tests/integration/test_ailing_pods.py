"""Pods that do not stay up, on a real Consul: the status tells the exit of one, an alert the crash loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.reality import Exit, Health, Reality
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, start_farm
from tests.recorders import CountingRecorder


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({"node1": {}, "node2": {}})
        yield made


@pytest.fixture
async def farm(cluster: Cluster) -> AsyncIterator[RunningFarm]:
    running = await start_farm(cluster.client, "farm-1", keys=cluster.keys)
    yield running
    await running.close()


async def test_the_worst_pods_exit_is_in_the_status_and_a_crash_loop_is_one_alert(
    cluster: Cluster, farm: RunningFarm
) -> None:
    rc = await cluster.create_rc("hello", 2)

    async def placed() -> bool:
        return len(await cluster.intents()) == 2

    await eventually(placed)

    async def says(state: str, reason: str) -> None:
        async def so() -> bool:
            status = await cluster.status(rc)
            return (status.state, status.reason) == (state, reason)

        await eventually(so, what=f"status {state} {reason!r}")

    await says("progressing", "2 of 2 pods are not healthy; node1/hello: it is still starting")
    entries = await cluster.entries(cluster.keys.tree("intent"))
    for node in ("node1", "node2"):
        index = entries[cluster.keys.intent(node, "hello")].modify_index
        up = Reality(
            manifest=rc.manifest, owner=rc.id, started=CLOCK.now(), intent=index, health=Health("passing")
        )
        await cluster.put(cluster.keys.reality(node, "hello"), up)
    since = CLOCK.now() - 61.0
    down = Reality(
        manifest=rc.manifest,
        owner=rc.id,
        phase="backoff",
        intent=entries[cluster.keys.intent("node2", "hello")].modify_index,
        restarts=7,
        exits=[Exit(since, 0), Exit(CLOCK.now(), 3)],
        health=Health(since=since),
        reason="exited with code 3 after 0.1 s",
    )
    await cluster.put(cluster.keys.reality("node2", "hello"), down)
    await says("progressing", "1 of 2 pods is not healthy; node2/hello: exited with code 3")
    (alert,) = farm.alerts.fired
    assert alert.incident_key == f"rc_crashes_{rc.id}"
    assert (
        alert.summary == "rc 'hello': crash loop: 1 of 2 pods is not healthy; node2/hello: exited with code 3"
    )
    assert (alert.name, alert.item, alert.path) == ("FarmdRcCrashes", "rc/hello", "/controllers/hello")
    recorder = CountingRecorder()
    for kind in farm.farm.kinds:
        kind.publish(recorder)
    assert recorder.values["farmd_crash_loops", "rcs"] == recorder.values["farmd_owners_short", "rcs"] == 1
    assert recorder.values["farmd_owner_desired_pods", "rcs", "hello"] == 2
    assert (await cluster.status(rc)).alerts == (f"rc_crashes_{rc.id}",)
