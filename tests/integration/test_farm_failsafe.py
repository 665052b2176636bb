"""Doubt on a real Consul: nothing is removed, additions go on, people have the last word (R18–R20, W4)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from store import codec
from store.failsafe import Acknowledgement, Failsafe, FailsafeStore
from store.manifests import Manifest
from store.nodes import Agent, Node
from store.rcs import ReplicationController
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, start_farm

OTHER = Manifest(id="other", command=["x"])
NODES = [f"n{number}" for number in range(8)]


class Fleet:
    """A cluster of eight nodes with one farm and one converged controller of four pods."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def set_up(self) -> None:
        self.cluster_id = await self.cluster.register()
        await self.cluster.add_nodes({name: {} for name in NODES})
        self.farm = await self.start("a")
        self.rc = await self.cluster.create_rc("web", 4)
        await self.count(self.rc, 4)

    async def start(self, name: str) -> RunningFarm:
        return await start_farm(self.cluster.client, name, keys=self.cluster.keys, thaw_after=1.0)

    async def count(self, rc: ReplicationController, count: int) -> None:
        async def so_many() -> bool:
            return len(await self.cluster.pods(rc.id)) == count

        await eventually(so_many, what=f"{count} pods of {rc.name}")

    async def state(self, rc: ReplicationController, state: str) -> None:
        async def so() -> bool:
            return (await self.cluster.status(rc)).state == state

        await eventually(so, what=f"{rc.name} {state}")

    async def freeze(self) -> Failsafe | None:
        entry = await self.cluster.client.read(self.cluster.keys.failsafe("rcs"))
        return None if entry is None else codec.decode(Failsafe, entry.value, entry.key)

    async def frozen(self, text: str) -> Failsafe:
        async def so() -> Failsafe | None:
            record = await self.freeze()
            return record if record is not None and text in record.evidence else None

        return await eventually(so, what="the freeze")  # type: ignore[no-any-return]

    async def thawed(self) -> None:
        async def so() -> bool:
            return await self.freeze() is None

        await eventually(so, what="the thaw")

    async def delete_sentinel(self, family: str) -> None:
        await self.cluster.client.delete(self.sentinel(family))

    async def restore_sentinel(self, family: str) -> None:
        await self.cluster.client.put(self.sentinel(family), msgspec.json.encode(self.cluster_id))

    def sentinel(self, family: str) -> str:
        return self.cluster.keys.sentinel(self.cluster.keys.tree(family))

    async def add_stray(self) -> None:
        """A pod too many, as a late transaction would leave it: no person's word stands behind it."""
        keys, client = self.cluster.keys, self.cluster.client
        pods = await self.cluster.pods(self.rc.id)
        spare = next(node for node in NODES if (node, "hello") not in pods)
        pod = await client.read(keys.pod(self.rc.id, *pods[0]))
        intent = await client.read(keys.intent(*pods[0]))
        assert pod is not None
        assert intent is not None
        await client.put(keys.intent(spare, "hello"), intent.value)
        await client.put(keys.pod(self.rc.id, spare, "hello"), pod.value)

    async def told(self, incident_key: str) -> None:
        """Wait until people were told of one incident, and of nothing else."""

        async def so() -> bool:
            return bool(self.farm.alerts.fired)

        await eventually(so, what="an alert")
        fired = [(alert.urgency, alert.incident_key) for alert in self.farm.alerts.fired]
        assert fired == [("high", incident_key)]


@pytest.fixture
async def fleet(consul_dev: str) -> AsyncIterator[Fleet]:
    async with cluster_on(consul_dev) as cluster:
        made = Fleet(cluster)
        await made.set_up()
        yield made
        if not made.farm.task.done():
            await made.farm.close()


async def test_r20_a_wiped_tree_of_records_removes_nothing(fleet: Fleet) -> None:
    await fleet.cluster.client.delete(fleet.cluster.keys.tree("rcs"), recurse=True)
    await fleet.frozen("rcs: the answer lacks the sentinel")
    assert len(await fleet.cluster.pods(fleet.rc.id)) == 4
    assert fleet.farm.owned == {fleet.rc.id}, "it is not given up either"
    await fleet.told("no_rcs_found")
    assert fleet.farm.metric("farmd_frozen", kind="rcs") == 1


async def test_r18_frozen_additions_go_on_removals_stand_still_and_commands_are_obeyed(
    fleet: Fleet,
) -> None:
    other = await fleet.cluster.create_rc("other", 2, manifest=OTHER)
    await fleet.count(other, 2)
    await fleet.state(fleet.rc, "progressing")
    await fleet.delete_sentinel("nodes")
    await fleet.frozen("nodes: the answer lacks the sentinel")
    # An explicit command after the freeze counts; so do additions.
    other = await fleet.cluster.change_rc(other, replicas_desired=5)
    await fleet.count(other, 5)
    fleet.rc = await fleet.cluster.change_rc(fleet.rc, replicas_desired=3)
    await fleet.count(fleet.rc, 3)


async def test_r18_a_removal_that_nobody_asked_for_since_waits_for_the_thaw(fleet: Fleet) -> None:
    await fleet.delete_sentinel("agents")
    await fleet.frozen("agents: the answer lacks the sentinel")
    await fleet.add_stray()
    await fleet.state(fleet.rc, "frozen")
    assert len(await fleet.cluster.pods(fleet.rc.id)) == 5
    await fleet.restore_sentinel("agents")
    await fleet.thawed()
    await fleet.count(fleet.rc, 4)

    async def over() -> bool:
        return fleet.farm.alerts.firing == {}

    await eventually(over)


async def test_r18_an_acknowledgement_of_the_evidence_lets_removals_go_on(fleet: Fleet) -> None:
    await fleet.delete_sentinel("agents")
    record = await fleet.frozen("agents")
    await fleet.add_stray()
    await fleet.state(fleet.rc, "frozen")
    store = FailsafeStore(fleet.cluster.client, fleet.cluster.keys)
    stored = await store.get("rcs")
    assert stored is not None
    word = Acknowledgement(record.evidence, "user/me", CLOCK.now() + 60, "the tree was pruned by me")
    await fleet.cluster.client.transaction([store.acknowledge(stored, word)])
    await fleet.count(fleet.rc, 4)


async def test_r19_a_mass_loss_of_agents_is_evidence_and_one_lost_agent_is_none(fleet: Fleet) -> None:
    await fleet.cluster.lose_agents("n0")
    other = await fleet.cluster.create_rc("other", 7, manifest=OTHER)
    await fleet.count(other, 7)
    assert await fleet.freeze() is None
    await fleet.cluster.lose_agents(*NODES[1:5])
    await fleet.frozen("agents: more than 50% of the nodes are absent")
    assert len(await fleet.cluster.pods(other.id)) == 7
    await fleet.cluster.keep_present(NODES[:5])
    await fleet.thawed()


async def test_r19_a_share_of_records_that_do_not_decode_is_evidence(fleet: Fleet) -> None:
    """Most agents here: they are there all the same, and no mass loss is told."""
    cluster = fleet.cluster
    for name in NODES[:6]:
        await cluster.client.put(cluster.keys.agent(name), b"{")
    await fleet.frozen("agents: more than 20% of the records do not decode")
    for name in NODES[:6]:
        await cluster.put(cluster.keys.agent(name), Agent(node=name, version="test"))
    await fleet.thawed()
    for name in NODES[:4]:
        await cluster.client.put(cluster.keys.node(name), b"{")
    await fleet.frozen("nodes: more than 20% of the records do not decode")
    for name in NODES[:4]:
        await cluster.put(cluster.keys.node(name), Node())
    await fleet.thawed()
    assert len(await fleet.cluster.pods(fleet.rc.id)) == 4


async def test_w4_r19_a_count_of_zero_and_the_last_deletion_are_meant(fleet: Fleet) -> None:
    """p2 panicked on both (W4)."""
    fleet.rc = await fleet.cluster.change_rc(fleet.rc, replicas_desired=0)
    await fleet.count(fleet.rc, 0)
    await fleet.cluster.client.delete(fleet.cluster.keys.record("rcs", fleet.rc.id))

    async def released() -> bool:
        return fleet.farm.owned == set()

    await eventually(released)
    assert await fleet.freeze() is None
    assert fleet.farm.alerts.fired == []
    again = await fleet.cluster.create_rc("again", 2)
    await fleet.count(again, 2)


async def test_r20_the_sentinel_of_another_cluster_freezes(fleet: Fleet) -> None:
    await fleet.cluster.client.put(fleet.sentinel("intent"), b'"another"')
    await fleet.frozen("intent: its sentinel has another cluster's id")
    await fleet.restore_sentinel("intent")
    await fleet.thawed()


async def test_w4_r18_a_wiped_store_removes_nothing_registers_nothing_and_ends_no_farm(
    fleet: Fleet,
) -> None:
    await fleet.cluster.client.delete(fleet.cluster.keys.prefix, recurse=True)

    async def frozen() -> bool:
        return fleet.farm.metric("farmd_frozen", kind="rcs") == 1

    await eventually(frozen)
    assert not fleet.farm.task.done()
    left = await fleet.cluster.client.list(fleet.cluster.keys.prefix)
    assert [raw.key for raw in left.items if raw.key.endswith(".present")] == []
    await fleet.told("no_rcs_found")
