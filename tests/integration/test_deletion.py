"""Deleting what owns pods, on a real Consul: a person marks the record, its worker does the rest.

Controllers and daemon sets go the same way: first the pods, then, when no node runs one any more, the record.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from farmd import overview
from farmd.commands.mutation import Call, commit
from farmd.daemonset.commands import DAEMON_SET
from farmd.overview import PodRow
from farmd.replication.commands import RC
from farmd.runtime.clock import SystemIds
from store import codec
from store.failsafe import Failsafe
from store.locks import Holder, MutationLocker
from store.status import Status
from store.work import Work
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, farm_on, start_farm
from tests.obedient import Obedient, obedient
from tests.people import hello

KINDS = ("rcs", "daemonsets")


@dataclass
class Owner:
    """One controller or daemon set of two pods, and what a person may ask of it."""

    cluster: Cluster
    call: Call
    kind: str
    id: str = ""

    @property
    def _commands(self) -> Any:
        return RC if self.kind == "rcs" else DAEMON_SET

    async def create(self) -> None:
        if self.kind == "rcs":
            mutation = await RC.create(self.call, RC.file.parse(hello(replicas=2), "test"))
        else:
            fields = {name: value for name, value in hello().items() if name != "replicas"}
            mutation = await DAEMON_SET.create(self.call, DAEMON_SET.file.parse(fields, "test"))
        await commit(self.call, mutation)
        self.id = mutation.change.id

    async def placed(self) -> None:
        """Return once its pods stand and their nodes run them."""

        async def so() -> bool:
            realities = await self.cluster.entries(self.cluster.keys.tree("reality"))
            return len(await self.cluster.pods(self.id)) == len(realities) == 2

        await eventually(so, what="two pods that run")

    async def mark(self) -> None:
        """``delete --cascade --no-wait``."""
        await commit(self.call, await self._commands.delete(self.call, "hello", cascade=True))

    async def status(self) -> Status | None:
        entry = await self.cluster.client.read(self.cluster.keys.status(self.kind, self.id))
        return None if entry is None else codec.decode(Status, entry.value, entry.key)

    async def says(self, state: str, text: str) -> None:
        async def so() -> bool:
            found = await self.status()
            return found is not None and found.state == state and text in found.reason

        await eventually(so, what=f"status {state} {text!r}")

    async def pods_gone(self) -> None:
        async def so() -> bool:
            return not await self.cluster.pods(self.id)

        await eventually(so, what="the removal of the pods")

    async def row(self) -> Any:
        client, keys = self.call.client, self.call.keys
        return await overview.row(client, keys, self._commands.records(client, keys), "hello")

    async def gone(self, by: str = "farm-1") -> None:
        """Return once nothing is left of it but its audit and its manifest."""
        keys = self.cluster.keys

        async def left() -> list[str]:
            found = await self.cluster.entries(keys.prefix)
            name = keys.name(self.kind, "hello")
            return [key for key in found if (self.id in key or key == name) and "/audit/" not in key]

        async def so() -> bool:
            return not await left()

        await eventually(so, what="the end of all its keys")
        assert await self.cluster.client.read(keys.sentinel(keys.pods(self.id))) is None
        (end,) = [audit for audit in await self.cluster.audits() if audit.action.endswith(".delete")]
        assert (end.id, end.actor, end.after) == (self.id, f"farm/{by}", {"exists": False})


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({"node1": {}, "node2": {}})
        yield made


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[Obedient]:
    async with obedient(cluster) as made:
        yield made


@pytest.fixture
async def farm(cluster: Cluster) -> AsyncIterator[RunningFarm]:
    running = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS, thaw_after=3600)
    yield running
    await running.close()


@pytest.fixture(params=KINDS)
async def owner(
    request: pytest.FixtureRequest, cluster: Cluster, agents: Obedient, farm: RunningFarm
) -> Owner:
    call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@desk")
    made = Owner(cluster, call, request.param)
    await made.create()
    await made.placed()
    return made


async def test_a_marked_one_is_gone_when_its_processes_are_and_nobody_waits_for_it(
    owner: Owner, agents: Obedient
) -> None:
    agents.deaf |= {"node1", "node2"}
    await owner.mark()
    await owner.pods_gone()
    await owner.says("progressing", "2 processes ended: node1/hello, node2/hello")
    row = await owner.row()
    assert (row.state, "2 processes" in row.reason) == ("deleting", True)

    def shown(rows: list[PodRow]) -> list[tuple[str, bool, str]]:
        return [(pod.node, pod.gone, pod.reason) for pod in rows]

    stopping = [("node1", True, "its pod was removed"), ("node2", True, "its pod was removed")]
    assert shown((await overview.pods(owner.call.client, owner.call.keys)).rows) == stopping
    assert shown((await overview.pods(owner.call.client, owner.call.keys, row.record)).rows) == stopping
    agents.deaf.discard("node1")
    await owner.says("progressing", "1 process ended: node2/hello")
    agents.deaf.clear()
    await owner.gone()


async def test_r21_a_process_on_a_node_that_is_given_up_is_not_waited_for(
    owner: Owner, cluster: Cluster, agents: Obedient
) -> None:
    agents.deaf |= {"node1"}
    await cluster.lose_agents("node1")
    await owner.mark()
    await owner.says("progressing", "node1/hello (its agent is absent)")
    await cluster.put(cluster.keys.work("nodes", "node1"), Work(lost_since=CLOCK.now()))
    await owner.gone()


async def test_r18_a_freeze_after_the_mark_keeps_the_pods_and_the_record_until_it_thaws(
    owner: Owner, cluster: Cluster, farm: RunningFarm, agents: Obedient
) -> None:
    agents.deaf |= {"node1"}
    await owner.mark()
    await owner.pods_gone()
    await owner.says("progressing", "node1/hello")
    key = cluster.keys.failsafe(owner.kind)
    await cluster.put(key, Failsafe(evidence="agents: a test", by="farm/other", since=CLOCK.now()))

    async def seen() -> bool:
        return farm.metric("farmd_frozen", kind=owner.kind) == 1

    await eventually(seen, what="the freeze in the farm")
    agents.deaf.clear()
    await owner.says("frozen", "agents: a test")
    assert await cluster.client.read(cluster.keys.record(owner.kind, owner.id)) is not None
    await cluster.client.delete(key)
    await owner.gone()


async def test_r13_whoever_holds_the_mutation_lock_is_waited_for_and_named(
    owner: Owner, cluster: Cluster, agents: Obedient
) -> None:
    agents.deaf |= {"node1"}
    await owner.mark()
    await owner.pods_gone()
    session = await cluster.client.create_session(name="test", ttl=60)
    holder = Holder("rollouts", "r1", "n1")
    await MutationLocker(cluster.client, cluster.keys, owner.kind).take(owner.id, session, holder)
    agents.deaf.clear()
    await owner.says("blocked", "locked by rollouts/r1")
    assert await cluster.client.read(cluster.keys.record(owner.kind, owner.id)) is not None
    await cluster.client.destroy_session(session)
    await owner.gone()


async def test_one_whose_manifest_does_not_decode_is_deleted_all_the_same(
    owner: Owner, cluster: Cluster, farm: RunningFarm
) -> None:
    await farm.close()
    manifest = (await owner.row()).record.manifest
    await cluster.client.put(cluster.keys.manifest(manifest), b"no manifest")
    await owner.mark()
    async with farm_on(cluster.client, "farm-2", keys=cluster.keys, kinds=KINDS):
        await owner.gone(by="farm-2")


async def test_r14_one_that_a_rollout_took_over_is_left_to_it(
    cluster: Cluster, agents: Obedient, farm: RunningFarm
) -> None:
    call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@desk")
    owner = Owner(cluster, call, "rcs")
    await owner.create()
    await owner.placed()
    agents.deaf |= {"node1"}
    await owner.mark()
    await owner.pods_gone()
    key = cluster.keys.record("rcs", owner.id)
    entry = await cluster.client.read(key)
    assert entry is not None
    managed = json.loads(entry.value) | {"managed_by": "rollouts/r1"}
    await cluster.client.put(key, json.dumps(managed).encode())
    agents.deaf.clear()
    await owner.says("blocked", "rollouts/r1 manages it")
    await cluster.client.put(key, entry.value)
    await owner.gone()


async def test_a_farm_that_takes_it_over_goes_on_where_the_former_stopped(
    owner: Owner, cluster: Cluster, farm: RunningFarm, agents: Obedient
) -> None:
    agents.deaf |= {"node1"}
    await owner.mark()
    await owner.pods_gone()
    await owner.says("progressing", "node1/hello")
    await farm.close()
    agents.deaf.clear()
    async with farm_on(cluster.client, "farm-2", keys=cluster.keys, kinds=KINDS):
        await owner.gone(by="farm-2")
