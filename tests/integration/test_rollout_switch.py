"""The switch of a blue-green rollout on a real Consul: once, whoever dies; and never without its service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from farmd.commands.mutation import commit
from farmd.rollout import commands
from farmd.services import commands as service_commands
from store.policies import Policy
from store.services import Service, ServiceStore
from tests.fleet import cluster_on, farm_on
from tests.mortal import bury, mortal_farm
from tests.obedient import obedient
from tests.rolling import FIRST, KINDS, SECOND, STAGED, Rolling

GREEN = Policy(strategy="blue-green", progress_deadline=600.0, min_healthy_time=0.0, keep_old=0.5)
KEPT = msgspec.structs.replace(GREEN, keep_old=600.0)


@pytest.fixture
async def shop(consul_dev: str) -> AsyncIterator[Rolling]:
    """A controller of three pods, whose service is ``shop``; no farm works on it."""
    async with cluster_on(consul_dev) as cluster, obedient(cluster):
        rolling = Rolling(cluster, consul_dev)
        async with farm_on(cluster.client, "first", keys=cluster.keys, kinds=KINDS):
            await rolling.prepare(3)
        await commit(rolling.call, await service_commands.create(rolling.call, "shop", "http", ["web"]))
        yield rolling


async def serves(rolling: Rolling) -> list[str]:
    """The names of the controllers whose pods serve."""
    names = {rc.id: name for name, rc in (await rolling.controllers()).items()}
    record = (await ServiceStore(rolling.call.client, rolling.call.keys).find("shop")).record
    return [names[ref.removeprefix("rcs/")] for ref in record.active]


async def switches(rolling: Rolling, ident: str) -> int:
    return sum(
        each.action == "rollout.switch" and each.id == ident for each in await rolling.cluster.audits()
    )


@pytest.mark.parametrize("answered", [True, False])
async def test_t5_a_farm_that_dies_with_the_switch_leaves_it_made_once(shop: Rolling, answered: bool) -> None:
    cluster = shop.cluster
    dying = mortal_farm(cluster, shop.address, "rollout.switch", answered=answered, kinds=KINDS)
    async with dying as mortal:
        ident = await shop.update(SECOND, GREEN)
        await mortal.falls()
        assert await serves(shop) == [f"web-{ident[:6]}"]
        await bury(cluster)
    async with farm_on(cluster.client, "heir", keys=cluster.keys, kinds=KINDS):
        assert (await shop.ended(ident)).outcome == "done"
        await shop.whole(SECOND, 3)
        assert (await serves(shop), await switches(shop, ident)) == (["web"], 1)


@pytest.mark.parametrize("answered", [True, False])
async def test_t5_a_farm_that_dies_with_the_switch_back_leaves_it_made_once(
    shop: Rolling, answered: bool
) -> None:
    cluster = shop.cluster
    async with farm_on(cluster.client, "first", keys=cluster.keys, kinds=KINDS):
        ident = await shop.update(SECOND, KEPT)
        await shop.status(ident, "the service is switched")
    await shop.say(await commands.revert(shop.call, "web"))
    dying = mortal_farm(cluster, shop.address, "rollout.switch", answered=answered, kinds=KINDS)
    async with dying as mortal:
        await mortal.falls()
        assert await serves(shop) == ["web"]
        assert len(await cluster.intents()) == 6  # no pod of either version has left
        await bury(cluster)
    async with farm_on(cluster.client, "heir", keys=cluster.keys, kinds=KINDS):
        assert (await shop.ended(ident)).outcome == "reverted"
        await shop.whole(FIRST, 3)
        assert (await serves(shop), await switches(shop, ident)) == (["web"], 2)


async def test_without_its_service_a_rollout_neither_switches_nor_takes_old_pods_away(shop: Rolling) -> None:
    cluster = shop.cluster
    ident = await shop.update(SECOND, GREEN)
    stored = await ServiceStore(shop.call.client, shop.call.keys).find("shop")
    await shop.call.client.delete(stored.key)
    async with farm_on(cluster.client, "first", keys=cluster.keys, kinds=KINDS):
        await shop.status(ident, f"service '{stored.record.id}' does not exist")
        assert len(await cluster.intents()) == 6
        await shop.say(await commands.revert(shop.call, "web"))
        assert (await shop.ended(ident)).outcome == "reverted"
        await shop.whole(FIRST, 3)


async def test_a_service_that_people_change_meanwhile_is_switched_as_it_is_then(shop: Rolling) -> None:
    cluster = shop.cluster
    ident = await shop.update(SECOND, GREEN)
    store = ServiceStore(shop.call.client, shop.call.keys)
    stored = await store.find("shop")
    before = stored.record.active
    await shop.call.client.transaction([store.activate(stored, ["daemonsets/0a", *before])])
    async with farm_on(cluster.client, "first", keys=cluster.keys, kinds=KINDS):
        assert (await shop.ended(ident)).outcome == "done"
    (rc,) = (await shop.controllers()).values()
    assert (await store.find("shop")).record.active == ["daemonsets/0a", f"rcs/{rc.id}"]


async def test_t2_a_service_that_was_made_at_the_moment_of_the_beginning_names_both_versions(
    shop: Rolling,
) -> None:
    """Its maker saw no rollout, and the rollout's no such service: neither transaction met the other."""
    cluster, rc = shop.cluster, shop.rc
    assert rc is not None
    ident = await shop.update(SECOND, STAGED)
    store = ServiceStore(shop.call.client, shop.call.keys)
    late = Service(id="0abc", name="late", port="http", active=[f"rcs/{rc.id}"])
    await shop.call.client.transaction(store.create(late))
    async with farm_on(cluster.client, "first", keys=cluster.keys, kinds=KINDS):
        await shop.status(ident, "waits for farmctl rollout approve web")
        assert [len((await store.find(name)).record.active) for name in ("shop", "late")] == [2, 2]
        await shop.say(await commands.approve(shop.call, "web"))
        assert (await shop.ended(ident)).outcome == "done"
    (rc,) = (await shop.controllers()).values()
    assert [(await store.find(name)).record.active for name in ("shop", "late")] == [[f"rcs/{rc.id}"]] * 2
