"""Agent loss on a real Consul, with several farms: one verdict, a grace period, flapping, restarts (R21)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store import codec
from store.consul.client import ConsulClient
from store.manifests import Manifest
from store.nodes import NodeStatus
from store.work import Work
from tests.fleet import CLOCK, Cluster, RunningFarm, client_of, cluster_on, eventually, start_farm

NODES = ("n1", "n2", "n3", "n4", "n5")
GRACE = 4.0


class Fleet:
    """Farms that look after nodes, each with a client of its own."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.farms: dict[str, RunningFarm] = {}
        self.clients: list[ConsulClient] = []

    async def start(self, *names: str, lost_after: float = GRACE) -> None:
        for name in names:
            self.clients.append(client_of(self.address))
            self.farms[name] = await start_farm(
                self.clients[-1],
                name,
                keys=self.cluster.keys,
                kinds=("rcs", "nodes"),
                lost_after=lost_after,
            )

        async def all_owned() -> bool:
            owned = [item for farm in self.farms.values() for item in farm.owned]
            return set(NODES) <= set(owned)

        await eventually(all_owned, what="every node has a worker")

    async def close(self) -> None:
        for farm in self.farms.values():
            await farm.close()
        for client in self.clients:
            await client.close()

    async def work(self, node: str) -> Work:
        key = self.cluster.keys.work("nodes", node)
        entry = await self.cluster.client.read(key)
        return Work() if entry is None else codec.decode(Work, entry.value, key)

    async def untold(self, node: str) -> bool:
        return await self.status(node) is None

    async def lost(self, node: str) -> bool:
        return (await self.work(node)).lost_since > 0

    async def status(self, node: str) -> NodeStatus | None:
        key = self.cluster.keys.status("nodes", node)
        entry = await self.cluster.client.read(key)
        return None if entry is None else codec.decode(NodeStatus, entry.value, key)

    async def passed(self, seconds: float) -> None:
        """Return once so much time went by, which no farm may hurry."""
        until = CLOCK.mono() + seconds

        async def over() -> bool:
            return CLOCK.mono() >= until

        await eventually(over)

    async def verdicts(self) -> list[tuple[str, str]]:
        found = [(r.action, r.name) for r in await self.cluster.audits() if r.kind == "nodes"]
        return sorted(found)


@pytest.fixture
async def fleet(consul_dev: str) -> AsyncIterator[Fleet]:
    async with cluster_on(consul_dev) as cluster:
        await cluster.add_nodes({name: {"name": name} for name in NODES})
        made = Fleet(cluster, consul_dev)
        try:
            yield made
        finally:
            await made.close()


async def test_r21_several_farms_see_one_verdict_and_its_end(fleet: Fleet) -> None:
    await fleet.start("a", "b", "c")
    gone = CLOCK.now()
    await fleet.cluster.lose_agents("n1")
    await eventually(lambda: fleet.lost("n1"), what="the verdict")
    assert (await fleet.work("n1")).lost_since >= gone + GRACE
    assert await fleet.verdicts() == [("node.lost", "n1")]

    rcs = [
        await fleet.cluster.create_rc(
            f"rc-{n}", 1, manifest=Manifest(id=f"pod-{n}", command=["x"]), node_selector="name=n1"
        )
        for n in range(9)
    ]

    async def all_know() -> bool:
        reasons = [(await fleet.cluster.status(rc)).reason for rc in rcs]
        return all("lost" in reason for reason in reasons)

    await eventually(all_know, what="every controller's owner knows that the node is lost")
    farms = {(await fleet.cluster.status(rc)).farm for rc in rcs}
    assert len(farms) > 1

    await fleet.cluster.keep_present({"n1": None})

    async def all_placed() -> bool:
        return all([await fleet.cluster.pods(rc.id) == [("n1", rc.pod_id)] for rc in rcs])

    await eventually(all_placed, what="the node takes pods again")
    assert not await fleet.lost("n1")
    assert await fleet.verdicts() == [("node.back", "n1"), ("node.lost", "n1")]
    await eventually(lambda: fleet.untold("n1"), what="nothing is said of the node any more")


async def test_r21_a_flapping_agent_is_never_given_up(fleet: Fleet) -> None:
    await fleet.start("a", "b")
    for _ in range(5):
        await fleet.cluster.lose_agents("n1")
        await fleet.passed(GRACE / 4)
        await fleet.cluster.keep_present({"n1": None})
        await fleet.passed(GRACE / 20)
    assert await fleet.verdicts() == []
    await fleet.cluster.lose_agents("n1")
    await eventually(lambda: fleet.lost("n1"), what="the verdict on an agent that stays away")


async def test_r21_a_restart_of_the_farms_begins_the_grace_anew(fleet: Fleet) -> None:
    await fleet.start("a", lost_after=8.0)
    await fleet.cluster.lose_agents("n1")
    await fleet.passed(2.0)
    await fleet.farms.pop("a").close()
    restarted = CLOCK.now()
    await fleet.start("b", lost_after=8.0)
    await eventually(lambda: fleet.lost("n1"), what="the verdict")
    work = await fleet.work("n1")
    assert work.lost_since >= restarted + 8.0
    assert work.absent_since >= restarted


async def test_r18_a_mass_loss_is_the_networks_and_gives_nobody_up(fleet: Fleet) -> None:
    await fleet.start("a", "b", lost_after=5.0)  # the freeze comes sooner, even on a busy machine
    await fleet.cluster.lose_agents("n1", "n2", "n3", "n4")

    async def frozen() -> bool:
        return await fleet.cluster.client.read(fleet.cluster.keys.failsafe("nodes")) is not None

    await eventually(frozen, what="the freeze")
    await fleet.passed(7.0)
    assert await fleet.verdicts() == []
    await fleet.cluster.keep_present({"n2": None, "n3": None, "n4": None})
    await eventually(lambda: fleet.lost("n1"), what="the verdict after the thaw")
    assert await fleet.verdicts() == [("node.lost", "n1")]
