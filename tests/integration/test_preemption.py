"""Preemption on a real Consul: one farm waits for room, another makes it, and nobody breaks a floor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from farmd.clock import SystemIds
from farmd.mutation import Call, commit
from farmd.replication import commands
from farmd.replication.explaining import explain
from scheduler import explain as words
from store import codec
from store.checkpoint import replayed
from store.failsafe import Failsafe
from store.manifests import Manifest
from store.nodes import Node, Nomination, Reserved
from store.rcs import ReplicationController
from store.work import Work
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, farm_on
from tests.mortal import bury, mortal_farm
from tests.obedient import Obedient, obedient

NODES = [f"n{number}" for number in range(3)]


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
    """One farm for whoever makes room and one for whoever waits for it: neither holds both locks."""
    async with (
        farm_on(
            cluster.client,
            "farm-1",
            keys=cluster.keys,
            selector="tier=low",
            preemption=True,
            thaw_after=60.0,
        ) as one,
        farm_on(
            cluster.client,
            "farm-2",
            keys=cluster.keys,
            selector="tier=high",
            preemption=True,
            thaw_after=60.0,
        ) as other,
    ):
        yield one, other


async def create(
    cluster: Cluster, name: str, replicas: int, cpu: float, priority: int, **fields: object
) -> ReplicationController:
    manifest = Manifest(id=name, command=["sleep", "1000"], resources={"cpu": cpu}, priority=priority)
    labels = {"tier": "high" if priority > 50 else "low"}
    return await cluster.create_rc(name, replicas, manifest=manifest, labels=labels, **fields)


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


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    await eventually(condition, within=20, what=what)


async def is_converged(cluster: Cluster, *controllers: ReplicationController) -> None:
    async def all_are() -> bool:
        return all([(await cluster.status(rc)).state == "converged" for rc in controllers])

    await until(all_are, "converged")


async def nobody_waits(cluster: Cluster) -> None:
    async def none_left() -> bool:
        return not await nominations(cluster)

    await until(none_left, "no nomination")


async def actions(cluster: Cluster, rc: ReplicationController) -> list[str]:
    """What the audit says that farms did with a controller."""
    return [audit.action for audit in await cluster.audits() if audit.id == rc.id]


async def within_capacity(cluster: Cluster) -> None:
    """No node promises more than it has, and the history tells every pod."""
    for node, book in (await books(cluster)).items():
        assert sum(amounts["cpu"] for amounts in book.instances.values()) <= 2.0, node
    found = await replayed(cluster.client, cluster.keys)
    stand = {cluster.keys.pod_parts(key) for key in await cluster.entries(cluster.keys.tree("pods"))}
    assert {(key.owner, key.node, key.instance) for key in found.pods} == stand


async def full(cluster: Cluster, **fields: object) -> ReplicationController:
    """Three low pods that fill the three nodes."""
    low = await create(cluster, "low", 3, 2.0, 20, **fields)
    await is_converged(cluster, low)
    return low


async def at_the_floor(
    cluster: Cluster, agents: Obedient
) -> tuple[ReplicationController, ReplicationController]:
    """A low controller with an ill pod, and a high one that waits for the room of one that serves."""
    low = await full(cluster)
    agents.sick_since = CLOCK.now()
    agents.sick.add("n0")

    async def ill() -> bool:
        return (await cluster.status(low)).healthy == 2

    await until(ill, "a pod that is ill")
    await cluster.put(cluster.keys.node("n1"), Node(labels={"only": "here"}, capacity={"cpu": 2.0}))
    high = await create(cluster, "high", 1, 2.0, 80, node_selector="only=here")
    await says(cluster, high, "preempting on node n1", "too many of the other pods are not healthy")
    return low, high


async def test_a_pod_of_higher_priority_gets_the_room_and_the_lower_one_moves_before_it_breaks(
    cluster: Cluster, agents: Obedient
) -> None:
    async with two_farms(cluster) as farms:
        low = await create(cluster, "low", 2, 1.0, 20)
        await is_converged(cluster, low)
        # Now each node has a processor free, and none has two.
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
        assert farms[0].metric("farmd_preemptions_total", event="moved") == 1
        assert farms[1].metric("farmd_preemptions_total", event="nominated") == 1
        await within_capacity(cluster)


async def test_w17_a_pod_without_a_place_goes_and_the_health_floor_stands(
    cluster: Cluster, agents: Obedient
) -> None:
    """Of two pods that wait one gets room; the other is told who keeps it, and why."""
    async with two_farms(cluster) as farms:
        low = await full(cluster)
        high = await create(cluster, "high", 2, 2.0, 80)
        reason = await says(
            cluster, high, "preempting on node", "waits for rcs/low", "max_unavailable allows"
        )
        (node,) = await nominations(cluster)
        assert f"preempting on node {node} since 20" in reason
        await says(cluster, low, "should make room for rcs/high", "short of capacity")
        assert (len(await on(cluster, high)), len(await on(cluster, low))) == (1, 2)
        evicted = [audit for audit in await cluster.audits() if audit.action == "preemption.evict"]
        assert [(a.id, len(a.removed), a.reason, a.after["for"]) for a in evicted] == [
            (low.id, 1, "preempted", "rcs/high")
        ]
        assert farms[0].metric("farmd_preemptions_total", event="removed") == 1
        # Its owner's own word makes room: fewer are wanted, and the one that should go goes first.
        await cluster.change_rc(low, replicas_desired=1)
        await is_converged(cluster, high)
        assert node in await on(cluster, high)
        await nobody_waits(cluster)
        await within_capacity(cluster)


async def test_room_that_is_made_is_not_taken_by_whoever_is_lower(cluster: Cluster, agents: Obedient) -> None:
    """The low controller misses the very pods that it lost, and sees the room: it is not its own."""
    async with two_farms(cluster):
        low = await full(cluster, max_unavailable=3)
        high = await create(cluster, "high", 3, 2.0, 80)
        await is_converged(cluster, high)
        assert await on(cluster, low) == []
        placed = [audit for audit in await cluster.audits() if audit.id == low.id and audit.placed]
        assert len(placed) == 1
        await says(cluster, low, "3 of 3 pods found no place")
        await within_capacity(cluster)


@pytest.mark.parametrize("answered", [True, False], ids=["acknowledged", "answer lost"])
@pytest.mark.parametrize("action", ["preemption.nominate", "preemption.evict"])
async def test_the_heir_of_a_farm_that_died_in_between_finishes(
    cluster: Cluster, agents: Obedient, consul_dev: str, action: str, answered: bool
) -> None:
    async with mortal_farm(cluster, consul_dev, action, answered=answered, preemption=True) as mortal:
        low = await full(cluster)
        high = await create(cluster, "high", 1, 2.0, 80)
        await asyncio.wait_for(mortal.stop.cut.wait(), 20)  # type: ignore[attr-defined]
        await bury(cluster, mortal)
        assert len(await nominations(cluster)) == 1
        async with farm_on(cluster.client, "heir", keys=cluster.keys, preemption=True):
            await is_converged(cluster, high)
    assert len(await on(cluster, low)) == 2
    assert await actions(cluster, high) == ["preemption.nominate", "pods.place"]
    assert await actions(cluster, low) == ["pods.place", "preemption.evict"]
    assert await nominations(cluster) == {}
    await within_capacity(cluster)


async def test_pods_of_a_lost_node_have_room_made_for_them(cluster: Cluster, agents: Obedient) -> None:
    high = await create(cluster, "high", 1, 2.0, 80, node_selector="old in (yes)")
    await cluster.put(cluster.keys.node("n0"), Node(labels={"old": "yes"}, capacity={"cpu": 2.0}))
    async with two_farms(cluster):
        await is_converged(cluster, high)
        low = await create(cluster, "low", 2, 2.0, 20)
        await is_converged(cluster, low)
        high = await cluster.change_rc(high, node_selector="")
        await cluster.lose_agents("n0")
        await cluster.put(cluster.keys.work("nodes", "n0"), Work(lost_since=CLOCK.now()))

        async def elsewhere() -> bool:
            return await on(cluster, high) in (["n1"], ["n2"])

        await until(elsewhere, "a place on a node that is there")
        assert len(await on(cluster, low)) == 1
        await nobody_waits(cluster)
        await within_capacity(cluster)


async def test_r18_frozen_nothing_is_nominated_moved_or_removed(cluster: Cluster, agents: Obedient) -> None:
    async with two_farms(cluster):
        low = await full(cluster)
        await cluster.put(cluster.keys.failsafe("rcs"), Failsafe(evidence="somebody doubts", by="farm/three"))
        high = await create(cluster, "high", 1, 2.0, 80)
        await says(cluster, high, "found no place")
        assert await nominations(cluster) == {}
        assert len(await on(cluster, low)) == 3
        await cluster.client.delete(cluster.keys.failsafe("rcs"))
        await is_converged(cluster, high)
    assert await actions(cluster, high) == ["preemption.nominate", "pods.place"]


@pytest.mark.parametrize(
    "change", [{"replicas_desired": 0}, {"disabled": True}, {"node_selector": "only=there"}], ids=str
)
async def test_a_nomination_is_withdrawn_when_it_is_needed_no_longer(
    cluster: Cluster, agents: Obedient, change: dict[str, object]
) -> None:
    async with two_farms(cluster):
        low, high = await at_the_floor(cluster, agents)
        await cluster.change_rc(high, **change)
        await nobody_waits(cluster)
        assert await actions(cluster, high) == ["preemption.nominate", "preemption.withdraw"]
        assert len(await on(cluster, low)) == 3


async def test_switched_off_nobody_is_preempted_and_what_was_nominated_is_withdrawn(
    cluster: Cluster, agents: Obedient
) -> None:
    async with two_farms(cluster):
        low, high = await at_the_floor(cluster, agents)
    agents.sick.clear()
    async with farm_on(cluster.client, "farm-3", keys=cluster.keys):
        await nobody_waits(cluster)
        await is_converged(cluster, low)
        assert len(await on(cluster, low)) == 3
        reason = await says(cluster, high, "1 of 1 pods found no place")
        assert "preempt" not in reason
    assert "preemption.evict" not in await actions(cluster, low)


async def test_a_disabled_controller_keeps_its_pods_and_is_named(cluster: Cluster, agents: Obedient) -> None:
    async with two_farms(cluster):
        low = await full(cluster)
        await cluster.change_rc(low, disabled=True)
        high = await create(cluster, "high", 1, 2.0, 80)
        await says(cluster, high, "preempts nothing", "these stay: rcs/low (disabled)")
        assert await nominations(cluster) == {}
        told = words.text(await explain(cluster.client, cluster.keys, high))
        assert told[-1].startswith("preemption would not help: of 3 nodes that lack nothing but capacity")
        assert told[-1].endswith("these stay: rc/low")
        await cluster.change_rc(low, disabled=False)
        await is_converged(cluster, high)
        assert len(await on(cluster, low)) == 2


async def test_explain_says_where_room_is_made_and_by_whom(cluster: Cluster, agents: Obedient) -> None:
    async with two_farms(cluster):
        _, high = await at_the_floor(cluster, agents)
        told = words.text(await explain(cluster.client, cluster.keys, high))
        assert told[-1] == "waits for room on n1 for high: low of rc/low (priority 20)"


async def test_deleting_who_waits_leaves_no_nomination(cluster: Cluster, agents: Obedient) -> None:
    """No farm is there to withdraw it."""
    async with two_farms(cluster):
        _, high = await at_the_floor(cluster, agents)
    await cluster.change_rc(high, replicas_desired=0)
    call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@desk")
    await commit(call, await commands.delete(call, "high", cascade=False))
    assert await nominations(cluster) == {}
    await within_capacity(cluster)
