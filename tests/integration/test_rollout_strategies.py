"""The strategies on a real Consul: in which order pods come and go, and what they leave."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from farmd.rollout import commands
from store.policies import Policy
from tests.fleet import cluster_on, farm_on
from tests.obedient import obedient
from tests.rolling import FIRST, KINDS, SECOND, Rolling

AVAILABLE = Policy(strategy="availability", ratio=50, progress_deadline=60.0, min_healthy_time=0.0)
SPARING = msgspec.structs.replace(AVAILABLE, strategy="resourceutil")


@pytest.fixture
async def rolled(consul_dev: str) -> AsyncIterator[Rolling]:
    """A cluster with agents that obey, and a farm."""
    async with (
        cluster_on(consul_dev) as cluster,
        obedient(cluster),
        farm_on(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS),
    ):
        yield Rolling(cluster, consul_dev)


async def moved(rolling: Rolling) -> list[tuple[int, int]]:
    """How many pods came and went in each transaction of a rollout."""
    audits = await rolling.cluster.audits()
    return [(len(each.placed), len(each.removed)) for each in audits if each.action == "rollout.move"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(AVAILABLE, [(2, 0), (0, 2), (2, 0), (0, 2)]), (SPARING, [(0, 2), (2, 0), (0, 2), (2, 0)])],
    ids=["availability", "resourceutil"],
)
async def test_pods_come_and_go_in_the_order_of_the_strategy(
    rolled: Rolling, policy: Policy, expected: list[tuple[int, int]]
) -> None:
    await rolled.prepare(4)
    ident = await rolled.update(SECOND, policy, pod=SECOND)
    assert (await rolled.ended(ident)).outcome == "done"
    await rolled.whole(SECOND, 4)
    assert await moved(rolled) == expected
    instances = {instance for _, instance in await rolled.cluster.intents()}
    assert instances == ({"web~0"} if policy.beside else {"web"})


async def test_pods_of_two_versions_stand_on_one_node_and_the_next_rollout_finds_room_again(
    rolled: Rolling,
) -> None:
    """Four pods on five nodes: half as many more find no nodes of their own."""
    await rolled.prepare(4)
    for manifest in (SECOND, FIRST):
        ident = await rolled.update(manifest, AVAILABLE, pod=manifest)
        assert (await rolled.ended(ident)).outcome == "done"
        await rolled.whole(manifest, 4)
    (rc,) = (await rolled.controllers()).values()
    assert (rc.numbered, rc.needs) == (True, ["numbered.1"])


@pytest.mark.parametrize("policy", [AVAILABLE, SPARING], ids=["availability", "resourceutil"])
async def test_it_goes_back_on_a_persons_word(rolled: Rolling, policy: Policy) -> None:
    held = msgspec.structs.replace(policy, ratio=None, stages=[1, {"to": "100%", "approve": True}])
    await rolled.prepare(4)
    ident = await rolled.update(SECOND, msgspec.convert(msgspec.to_builtins(held), Policy), pod=SECOND)
    await rolled.status(ident, "waits for farmctl rollout approve")
    await rolled.say(await commands.revert(rolled.call, "web"))
    assert (await rolled.ended(ident)).outcome == "reverted"
    await rolled.whole(FIRST, 4)
