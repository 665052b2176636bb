"""The strategies on a real Consul: in which order pods come and go, and what they leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farmd.rollout import commands
from farmd.services import commands as service_commands
from store.manifests import Manifest
from store.policies import Policy, Stage
from store.services import ServiceStore
from tests.agents import agents_on, shell
from tests.fleet import cluster_on, eventually, farm_on
from tests.obedient import obedient
from tests.rolling import FIRST, KINDS, SECOND, Rolling

AVAILABLE = Policy(strategy="availability", ratio=50, progress_deadline=600.0, min_healthy_time=0.0)
GREEN = Policy(strategy="blue-green", progress_deadline=600.0, min_healthy_time=0.0, keep_old=0.5)
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
    ident = await rolled.update(SECOND, policy)
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
        ident = await rolled.update(manifest, AVAILABLE)
        assert (await rolled.ended(ident)).outcome == "done"
        await rolled.whole(manifest, 4)
    (rc,) = (await rolled.controllers()).values()
    assert (rc.numbered, rc.needs) == (True, ["numbered.1"])


@pytest.mark.parametrize("policy", [AVAILABLE, SPARING], ids=["availability", "resourceutil"])
async def test_it_goes_back_on_a_persons_word(rolled: Rolling, policy: Policy) -> None:
    held = msgspec.structs.replace(policy, ratio=None, stages=[1, {"to": "100%", "approve": True}])
    await rolled.prepare(4)
    ident = await rolled.update(SECOND, msgspec.convert(msgspec.to_builtins(held), Policy))
    await rolled.status(ident, "waits for farmctl rollout approve")
    await rolled.say(await commands.revert(rolled.call, "web"))
    assert (await rolled.ended(ident)).outcome == "reverted"
    await rolled.whole(FIRST, 4)


class Shop:
    """The service of the controller, whose first owner is ``blue``."""

    def __init__(self, rolling: Rolling) -> None:
        self.rolling = rolling
        self.store = ServiceStore(rolling.call.client, rolling.call.keys)
        assert rolling.rc is not None
        self.blue = f"rcs/{rolling.rc.id}"

    async def active(self) -> list[str]:
        return (await self.store.find("shop")).record.active

    async def until(self, expected: list[str]) -> None:
        async def so() -> bool:
            return await self.active() == expected

        await eventually(so, what=f"a service of {expected}")


async def opened(rolling: Rolling) -> Shop:
    await rolling.prepare(3)
    await rolling.say(await service_commands.create(rolling.call, "shop", "http", ["web"]))
    return Shop(rolling)


async def test_t5_blue_green_switches_the_service_once_the_new_version_is_whole(rolled: Rolling) -> None:
    shop = await opened(rolled)
    ident = await rolled.update(SECOND, GREEN)
    assert await shop.active() == [shop.blue]
    assert (await rolled.ended(ident)).outcome == "done"
    await rolled.whole(SECOND, 3)
    (rc,) = (await rolled.controllers()).values()
    assert await shop.active() == [f"rcs/{rc.id}"]
    assert await moved(rolled) == [(3, 0), (0, 3)]
    words = [each.action for each in await rolled.cluster.audits() if each.id == ident]
    assert words.count("rollout.switch") == 1


async def test_t5_after_the_switch_a_revert_switches_back_before_a_new_pod_goes(rolled: Rolling) -> None:
    shop = await opened(rolled)
    ident = await rolled.update(SECOND, msgspec.structs.replace(GREEN, keep_old=600.0))
    await rolled.status(ident, "the service is switched")
    assert shop.blue not in await shop.active()
    await rolled.say(await commands.revert(rolled.call, "web"))
    assert (await rolled.ended(ident)).outcome == "reverted"
    await rolled.whole(FIRST, 3)
    assert await shop.active() == [shop.blue]
    words = [each.action for each in await rolled.cluster.audits() if each.id == ident]
    last_switch = len(words) - 1 - words[::-1].index("rollout.switch")
    assert words.index("rollout.back") < last_switch < len(words) - 1 - words[::-1].index("rollout.move")


async def test_blue_green_waits_for_a_word_before_the_switch(rolled: Rolling) -> None:
    shop = await opened(rolled)
    held = msgspec.structs.replace(GREEN, stages=[Stage(to="100%", approve=True)])
    ident = await rolled.update(SECOND, held)
    await rolled.status(ident, "stage 2 waits for farmctl rollout approve")
    assert (await shop.active(), await moved(rolled)) == ([shop.blue], [(3, 0)])
    await rolled.say(await commands.approve(rolled.call, "web"))
    assert (await rolled.ended(ident)).outcome == "done"
    assert shop.blue not in await shop.active()


def noted(version: int, lives: Path) -> Manifest:
    """A pod that notes its start, and its end half a second after it was told to stop."""
    note = f"trap 'sleep 0.5; echo - >> {lives}; exit 0' TERM; echo + >> {lives}"
    return shell(f"{note}; while :; do sleep 0.1; done # {version}")


@pytest.mark.parametrize(
    ("policy", "expected"), [(AVAILABLE, (4, 6)), (SPARING, (2, 4))], ids=["availability", "resourceutil"]
)
async def test_real_processes_are_never_fewer_than_the_floor_nor_more_than_the_ceiling(
    consul_dev: str, tmp_path: Path, policy: Policy, expected: tuple[int, int]
) -> None:
    lives = tmp_path / "lives"
    first, second = noted(1, lives), noted(2, lives)
    async with agents_on(consul_dev, tmp_path) as rig:
        rolling, nodes = Rolling(rig, consul_dev), ("n1", "n2", "n3", "n4")
        for node in nodes:
            await rig.agent(node)
        async with farm_on(rig.client, "farm-1", keys=rig.keys, kinds=KINDS):
            rolling.rc = await rig.create_rc("web", 4, manifest=first, min_healthy_time=0.0)
            await rolling.placed(4)
            for node in nodes:
                await rig.until_running(first, node=node)
            ident = await rolling.update(second, policy)
            assert (await rolling.ended(ident)).outcome == "done"
            await rolling.whole(second, 4)
        running, seen = 0, list[int]()
        for line in lives.read_text().split():
            running += 1 if line == "+" else -1
            seen.append(running)
    assert (min(seen[4:]), max(seen)) == expected
