"""House-keeping on real Consul: one farm at a time, taken over, and a history that replay reproduces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from farmd.config.sections import HousekeepingSection
from farmd.farm.errors import ClaimLost
from farmd.housekeeping.facts import PATIENCE_SECONDS
from farmd.housekeeping.kind import CHORES
from farmd.runtime.clock import SystemIds
from store import manifests
from store.audit import AuditReader
from store.checkpoint import replayed
from store.locks import Holder
from store.pods import PodKey
from tests.fleet import CLOCK, Cluster, cluster_on, eventually, start_farm
from tests.house import HOUR, House, house_on, manifest

KINDS = ("rcs", "housekeeping")
QUICK = HousekeepingSection(interval=1.0, manifest_age=0.0)


class ShiftedClock:
    """The system's clock, some time later."""

    def __init__(self) -> None:
        self.later = 0.0

    def now(self) -> float:
        return CLOCK.now() + self.later

    def mono(self) -> float:
        return CLOCK.mono() + self.later

    async def sleep(self, seconds: float) -> None:
        await CLOCK.sleep(seconds)


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as found:
        yield found


async def keeper(cluster: Cluster, clock: ShiftedClock, **settings: float) -> House:
    return await house_on(cluster.client, cluster.client, cluster.keys, clock, SystemIds(), **settings)


async def holders(cluster: Cluster) -> dict[str, str]:
    found = await cluster.entries(cluster.keys.lock("housekeeping", ""))
    return {key.rsplit("/", 1)[1]: Holder.parse(entry.value).id for key, entry in found.items()}


async def unreferenced(cluster: Cluster, number: int) -> str:
    sha, body = manifest(number)
    await cluster.client.transaction([manifests.ensure(cluster.keys, body)])
    return sha


async def condemned(cluster: Cluster, sha: str) -> bool:
    entry = await cluster.client.read(cluster.keys.manifest(sha))
    return entry is not None and entry.flags > 0


async def test_one_farm_at_a_time_keeps_house_and_another_takes_over(cluster: Cluster) -> None:
    first = await start_farm(
        cluster.client, "one", keys=cluster.keys, kinds=KINDS, sections={"housekeeping": QUICK}
    )
    second = await start_farm(
        cluster.client, "two", keys=cluster.keys, kinds=KINDS, sections={"housekeeping": QUICK}
    )
    try:

        async def all_held() -> bool:
            return set(await holders(cluster)) == CHORES.keys()

        await eventually(all_held, what="all chores are owned")
        assert not first.owned & second.owned
        sha = await unreferenced(cluster, 1)
        await eventually(lambda: condemned(cluster, sha), what="the manifest is condemned")
        await first.close()

        async def taken_over() -> bool:
            return set((await holders(cluster)).values()) == {"two"} and await all_held()

        await eventually(taken_over, what="the other farm owns all chores")
        again = await unreferenced(cluster, 2)
        await eventually(lambda: condemned(cluster, again), what="the next one is condemned")
    finally:
        await asyncio.gather(first.close(), second.close())


async def test_r24_on_real_consul_a_manifest_in_use_outlives_every_round(cluster: Cluster) -> None:
    clock = ShiftedClock()
    rc = await cluster.create_rc("hello", 0)
    sha = await unreferenced(cluster, 7)
    home = await keeper(cluster, clock, manifest_age=0)
    work = home.collection()
    await work.round()
    clock.later += PATIENCE_SECONDS + 1
    await work.round()
    assert await cluster.client.read(cluster.keys.manifest(sha)) is None
    used = await cluster.client.read(cluster.keys.manifest(rc.manifest))
    assert used is not None
    assert used.flags == 0


async def test_r24_on_real_consul_writing_a_condemned_body_again_moves_its_index(cluster: Cluster) -> None:
    clock = ShiftedClock()
    sha = await unreferenced(cluster, 7)
    home = await keeper(cluster, clock, manifest_age=0)
    work = home.collection()
    await work.round()
    assert await condemned(cluster, sha)
    await unreferenced(cluster, 7)  # the very body, as ensure does in a record's transaction
    clock.later += PATIENCE_SECONDS + 1
    await work.round()
    entry = await cluster.client.read(cluster.keys.manifest(sha))
    assert entry is not None
    assert entry.flags > 0, "it starts anew: condemned once more, and waited for"


async def pods(cluster: Cluster) -> frozenset[PodKey]:
    keys = await cluster.entries(cluster.keys.tree("pods"))
    return frozenset(PodKey(*cluster.keys.pod_parts(key)) for key in keys)


async def test_r25_replay_of_a_real_farms_history_reproduces_the_pods_tree(cluster: Cluster) -> None:
    clock = ShiftedClock()
    await cluster.add_nodes({f"n{number}": {} for number in range(12)})
    farm = await start_farm(cluster.client, "one", keys=cluster.keys)
    try:

        async def count(name: str, replicas: int) -> None:
            async def placed() -> bool:
                return len(await cluster.pods(rcs[name].id)) == replicas

            await eventually(placed, what=f"{name} has {replicas} pods")

        rcs = {
            name: await cluster.create_rc(name, 8, replicas_per_node=1, manifest=HELLOS[name])
            for name in HELLOS
        }
        for name in rcs:
            await count(name, 8)
        rcs["a"] = await cluster.change_rc(rcs["a"], replicas_desired=3)
        await count("a", 3)
        found = await replayed(cluster.client, cluster.keys)
        assert found.checkpoint is None
        assert found.pods == await pods(cluster)

        home = await keeper(cluster, clock, audit_retention=2 * HOUR)
        clock.later = 10 * HOUR
        pruning = asyncio.create_task(home.pruning().round())
        rcs["b"] = await cluster.change_rc(rcs["b"], replicas_desired=5)
        rcs["a"] = await cluster.change_rc(rcs["a"], replicas_desired=7)
        await pruning
        await count("b", 5)
        await count("a", 7)
        found = await replayed(cluster.client, cluster.keys)
        assert found.checkpoint is not None
        assert found.pods == await pods(cluster)

        # Nothing is written meanwhile, so the next checkpoint covers every record there is.
        clock.later = 20 * HOUR
        await home.pruning().round()
        assert len(await AuditReader(cluster.client, cluster.keys).hours()) <= 2
        rcs["b"] = await cluster.change_rc(rcs["b"], replicas_desired=0)
        await count("b", 0)
        found = await replayed(cluster.client, cluster.keys)
        assert found.pods == await pods(cluster)
        assert {pod.owner for pod in found.pods} == {rcs["a"].id}
    finally:
        await farm.close()


HELLOS = {name: manifests.Manifest(id=name, command=["sleep", "1000"]) for name in ("a", "b")}


async def test_r12_on_real_consul_a_lost_claim_writes_nothing(cluster: Cluster) -> None:
    sha = await unreferenced(cluster, 3)
    home = await keeper(cluster, ShiftedClock())
    await cluster.client.destroy_session(home.session.id)
    with pytest.raises(ClaimLost):
        await home.collection().round()
    assert not await condemned(cluster, sha)
