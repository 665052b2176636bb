"""A farm fires an alert and dies: whoever owns the item then ends it when it is over, on a real Consul."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store import codec
from store.farms import Member
from store.nodes import Node
from store.rcs import ReplicationController
from tests.fleet import Cluster, RunningFarm, cluster_on, eventually, start_farm

GOOD, BAD = {"quality": "good"}, {"quality": "bad"}
ROUTED = {"team": "web", "kind": "rcs"}


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        yield made


async def starved(cluster: Cluster) -> ReplicationController:
    """A controller without an eligible node."""
    await cluster.add_nodes({"node1": BAD})
    return await cluster.create_rc("web", 1, node_selector="quality=good", labels={"team": "web"})


async def told(cluster: Cluster, rc: ReplicationController, *alerts: str) -> None:
    """Wait until the store says that these alerts are open."""

    async def so() -> bool:
        return (await cluster.status(rc)).alerts == alerts

    await eventually(so, what=f"open alerts {alerts}")


async def die(cluster: Cluster, farm: RunningFarm) -> None:
    """As if by SIGKILL, twice the TTL later."""
    entry = await cluster.client.read(cluster.keys.farm("former"))
    assert entry is not None
    farm.task.cancel()
    await cluster.client.destroy_session(codec.decode(Member, entry.value, entry.key).session)


async def owned(farm: RunningFarm, rc: ReplicationController) -> None:
    async def so() -> bool:
        return rc.id in farm.owned

    await eventually(so, what="the heir as owner")


async def test_an_alert_that_outlived_its_farm_is_ended_by_the_heir_and_not_fired_again(
    cluster: Cluster,
) -> None:
    rc = await starved(cluster)
    former = await start_farm(cluster.client, "former", keys=cluster.keys)
    await told(cluster, rc, rc.id)
    assert [(alert.incident_key, alert.labels) for alert in former.alerts.fired] == [(rc.id, ROUTED)]
    await die(cluster, former)
    heir = await start_farm(cluster.client, "heir", keys=cluster.keys, seed=2)
    try:
        await owned(heir, rc)
        await cluster.put(cluster.keys.node("node1"), Node(labels={**BAD, "n": "1"}))

        async def looked() -> bool:
            return rc.id in heir.alerts.firing

        await eventually(looked, what="the heir to know of it")
        assert heir.alerts.fired == []
        assert heir.alerts.firing[rc.id].labels == ROUTED
        await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD))
        await told(cluster, rc)
        assert heir.alerts.resolved == [rc.id]
        assert heir.alerts.fired == []
    finally:
        await heir.close()


async def test_a_trouble_that_ended_between_two_owners_is_ended_by_the_second(cluster: Cluster) -> None:
    rc = await starved(cluster)
    former = await start_farm(cluster.client, "former", keys=cluster.keys)
    await told(cluster, rc, rc.id)
    await die(cluster, former)
    await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD))
    heir = await start_farm(cluster.client, "heir", keys=cluster.keys, seed=2)
    try:
        await told(cluster, rc)
        assert (heir.alerts.resolved, heir.alerts.fired) == ([rc.id], [])
    finally:
        await heir.close()


@pytest.mark.parametrize("dies", [True, False])
async def test_an_alert_whose_end_is_not_delivered_stays_open(cluster: Cluster, dies: bool) -> None:
    rc = await starved(cluster)
    former = await start_farm(cluster.client, "former", keys=cluster.keys)
    await told(cluster, rc, rc.id)
    former.alerts.owing.add(rc.id)
    await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD))

    async def placed() -> bool:
        status = await cluster.status(rc)
        return status.placed == 1 and former.alerts.resolved == [rc.id]

    await eventually(placed, what="the end of the trouble")
    assert (await cluster.status(rc)).alerts == (rc.id,)
    if not dies:
        former.alerts.owing.clear()
        await told(cluster, rc)
        await former.close()
        return
    await die(cluster, former)
    heir = await start_farm(cluster.client, "heir", keys=cluster.keys, seed=2)
    try:
        await told(cluster, rc)
        assert (heir.alerts.resolved, heir.alerts.fired) == ([rc.id], [])
    finally:
        await heir.close()


async def test_a_node_that_one_farm_gave_up_and_that_is_back_is_ended_by_another(cluster: Cluster) -> None:
    await cluster.add_nodes({f"node{number}": GOOD for number in range(3)})
    settings = {"kinds": ("nodes",), "lost_after": 1.0}
    former = await start_farm(cluster.client, "former", keys=cluster.keys, **settings)
    await cluster.lose_agents("node1")

    async def lost() -> bool:
        return "node_lost_node1" in former.alerts.firing

    await eventually(lost, what="the verdict")
    await die(cluster, former)
    heir = await start_farm(cluster.client, "heir", keys=cluster.keys, seed=2, **settings)
    try:
        await cluster.keep_present({"node1": None})

        async def over() -> bool:
            return heir.alerts.resolved == ["node_lost_node1"]

        await eventually(over, what="the end of it")
        assert heir.alerts.fired == []
    finally:
        await heir.close()
