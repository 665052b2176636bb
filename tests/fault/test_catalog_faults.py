"""What Consul's catalogue shows whatever happens to the farm that writes it, and to the catalogue itself.

A farm is killed or frozen at each of its transactions while it registers more pods than one of them holds;
what becomes of that transaction differs from case to case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, get_args

import pytest

from farmd.catalog.kind import LEFTOVERS
from farmd.commands.mutation import commit
from farmd.runtime.clock import SystemIds
from farmd.services import commands
from store import catalog
from store.services import Catalog
from tests.catalogs import Reader
from tests.fault.farm_process import Nursery
from tests.fault.rig import Rig, came, every_k, rig_on
from tests.fleet import in_time
from tests.proxy import Proxy
from tests.servers import ConsulServer
from tests.services import agent, controller, pod, service
from tests.shops import N1, N2, Shop, shop_on

PODS = 40
AT_ONCE = 2
Fate = Literal[
    "arrives before the take-over", "arrives after it", "never arrives", "is never answered", "wakes late"
]
FATES: tuple[Fate, ...] = get_args(Fate)


class Registration:
    """A service with ``PODS`` pods, each on a node of its own, that asks for the catalogue."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.name = f"web-{SystemIds().new()}"
        self.item = ""

    async def create(self) -> None:
        call = self.rig.call()
        rc = await controller(call, self.name)
        for number in range(PODS):
            await agent(call, f"n{number}", f"http://10.0.0.{number}:8101")
            await pod(call, rc, f"n{number}", port=20000 + number)
        self.item = await service(call, self.name, name=self.name, catalog=Catalog())

    async def shown(self) -> list[Any]:
        """The entries with their checks and indexes."""
        found: list[Any] = await Reader(self.rig.address).ask(f"health/service/{self.name}")
        return sorted(found, key=lambda each: str(each["Service"]["ID"]))

    async def whole(self) -> bool:
        """Whether all pods pass, each where it is; no instance may ever be without its check."""
        entries = await self.shown()
        for each in entries:
            (check,) = each["Checks"]
            assert check["ServiceID"] == each["Service"]["ID"], each
        found = {(each["Service"]["Address"], each["Service"]["Port"]) for each in entries}
        passing = all(each["Checks"][0]["Status"] == "passing" for each in entries)
        return passing and found == {(f"10.0.0.{number}", 20000 + number) for number in range(PODS)}

    async def replaced(self) -> None:
        """Delete the service and create one of the same name, which waits for no farm."""
        call = self.rig.call()
        await commit(call, await commands.delete(call, self.name))
        self.item = await service(call, self.name, name=self.name, catalog=Catalog())

    async def settled(self) -> None:
        """Return once the catalogue is whole and the worker says so."""

        async def so() -> bool:
            status = await self.rig.status(self.item, "catalog")
            return status is not None and status.state == "converged" and await self.whole()

        await self.rig.until(so, "a catalogue that shows all pods")


async def fall_at(k: int, fate: Fate, consul: str, nursery: Nursery) -> int:
    """One case; how many transactions came."""
    async with rig_on(consul, nursery) as rig, Proxy(consul) as proxy:
        made = Registration(rig)
        await made.create()
        hold = proxy.hold_transaction(k, answer=fate == "is never answered")
        victim = rig.process("victim", proxy.address, kinds=("catalog",))
        if not await came(hold, made.settled()):
            return hold.count
        await (asyncio.to_thread(victim.pause) if fate == "wakes late" else victim.end())
        await rig.farm("survivor", kinds=("catalog",))
        if fate in ("never arrives", "is never answered"):
            hold.drop()
        elif fate == "arrives before the take-over":
            hold.release()
            await in_time(hold.finished.wait())  # it may announce the farm whose session ends next
        await rig.expire("victim", hold)
        await rig.owned_by("survivor", made.item, kind="catalog")
        await made.settled()
        before = await made.shown()
        if fate in ("arrives after it", "wakes late"):
            hold.release()
            await in_time(hold.finished.wait())
            if fate == "wakes late":
                victim.resume()
                await rig.present("victim")
            assert await made.shown() == before, (k, fate)
    return k


@pytest.mark.parametrize("fate", FATES)
async def test_a_farm_that_falls_at_any_step_leaves_no_wrong_entry_and_its_late_write_is_refused(
    consul_dev: str, nursery: Nursery, fate: Fate
) -> None:
    steps = await every_k(lambda k: fall_at(k, fate, consul_dev, nursery), AT_ONCE)
    assert steps >= 6  # presence, claim, status, and at least two that hold the pods


async def fall_while_replaced(k: int, fate: Fate, consul: str, nursery: Nursery) -> int:
    """A service is deleted and created again, and the farm falls; how many transactions came."""
    async with rig_on(consul, nursery) as rig, Proxy(consul) as proxy:
        made = Registration(rig)
        await made.create()
        victim = rig.process("victim", proxy.address, kinds=("catalog",))
        await made.settled()
        old, hold = made.item, proxy.hold_transaction(k)

        async def new_alone() -> None:
            async def so() -> bool:
                return not any(old in each["Service"]["ID"] for each in await made.shown())

            await made.settled()
            await rig.until(so, "no entry of the deleted service")
            assert len(await made.shown()) == PODS

        await made.replaced()
        if not await came(hold, new_alone()):
            return hold.count
        await (asyncio.to_thread(victim.pause) if fate == "wakes late" else victim.end())
        await rig.farm("survivor", kinds=("catalog",))
        await rig.expire("victim", hold)
        await rig.owned_by("survivor", made.item, LEFTOVERS, kind="catalog")
        await new_alone()
        before = await made.shown()
        hold.release()
        await in_time(hold.finished.wait())
        if fate == "wakes late":
            victim.resume()
            await rig.present("victim")
        assert await made.shown() == before, (k, fate)
    return k


@pytest.mark.parametrize("fate", ["arrives after it", "wakes late"])
async def test_entries_of_a_deleted_service_go_whatever_farm_falls_and_a_new_one_of_its_name_stays(
    consul_dev: str, nursery: Nursery, fate: Fate
) -> None:
    steps = await every_k(lambda k: fall_while_replaced(k, fate, consul_dev, nursery), AT_ONCE)
    assert steps >= 4  # a claim, two that remove entries, two that write the new ones; some may be one


# The catalogue itself: wiped, restored, and taken by an agent of Consul.


@pytest.fixture(scope="module")
def alone() -> Iterator[ConsulServer]:
    """A Consul whose catalogue and snapshots are this module's alone."""
    with ConsulServer(dev=True, http_max_conns_per_client=10_000) as server:
        yield server


@pytest.fixture
async def shop(alone: ConsulServer) -> AsyncIterator[Shop]:
    async with shop_on(alone.address) as made:
        await made.farm()
        await made.publish(Catalog())
        await made.passes(N1, N2)
        yield made


async def test_a_wiped_catalogue_is_written_again(shop: Shop) -> None:
    for node in ("n1", "n2"):
        body = {"Node": catalog.node_name(shop.mark, node)}
        await shop.reader.ask("catalog/deregister", method="PUT", body=body)
    await shop.passes(N1, N2)
    await shop.told("converged")


async def test_r37_after_a_restore_the_catalogue_follows_what_consul_says_now(
    shop: Shop, alone: ConsulServer
) -> None:
    """Both what is newer than the snapshot, and what changes after the restore."""
    snapshot = await asyncio.to_thread(alone.snapshot)
    await agent(shop.call, "n3", "http://10.0.0.3:8101")
    await shop.pod("n3", 20003)
    await shop.pod("n2", 20002, state="critical")
    await shop.passes(N1, ("10.0.0.3", 20003))
    await asyncio.to_thread(alone.restore, snapshot)
    await shop.passes(N1, N2)
    await shop.pod("n1", 20001, state="critical")
    await shop.passes(N2)
    await shop.pod("n1", 20001)
    await shop.passes(N1, N2)


class Joining(ConsulServer):
    """An agent of Consul that joins a server under a name, and leaves with it when it is stopped."""

    def __init__(self, server: ConsulServer, node: str) -> None:
        super().__init__(dev=False, node=node, config={"leave_on_terminate": True})
        self._joins = f"{server.host}:{server.serf_port}"

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("-server")
        return [*words[:at], f"-retry-join={self._joins}", *words[at + 3 :]]


async def test_an_agent_of_consul_that_takes_our_nodes_name_keeps_it_and_the_rest_goes_on(
    shop: Shop, alone: ConsulServer
) -> None:
    node = catalog.node_name(shop.mark, "n1")
    foreign = Joining(alone, node)
    try:
        await asyncio.to_thread(foreign.start)
        await shop.passes(N2)
        assert node in await shop.told("blocked")
        found = await shop.reader.ask(f"catalog/node/{node}")
        assert found["Node"]["ID"]
        assert [each for each in found["Services"] if each.startswith("farmd/")] == []
        await shop.pod("n2", 20002, state="critical")
        await shop.passes()
        await shop.pod("n2", 20002)
        await shop.passes(N2)
    finally:
        await asyncio.to_thread(foreign.stop)
        foreign.close()
    await shop.passes(N1, N2)
    await shop.told("converged")
