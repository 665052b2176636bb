"""Services in Consul's own catalogue, kept there by farms: as readers of a real Consul find them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from farmd.commands.mutation import commit
from farmd.config.sections import ServicesSection
from farmd.doctor.examine import examine
from farmd.runtime.clock import SystemIds
from farmd.services import commands
from store import catalog, codec, operations
from store.embedded.http import HttpFace
from store.embedded.server import EmbeddedServer
from store.errors import TransactionRejected
from store.nodes import Node
from store.rollouts import Rollout
from store.services import Catalog, Service, ServiceStore
from tests import servers
from tests.catalogs import SRV, A, resolve
from tests.fleet import CLOCK, eventually
from tests.services import agent, controller, pod, service
from tests.shops import N1, N2, Shop, shop_on


@pytest.fixture(scope="module")
def consul() -> Iterator[servers.ConsulServer]:
    """A real Consul that answers DNS, too, whose catalogue is this module's alone."""
    with servers.ConsulServer(dev=True, dns=True, http_max_conns_per_client=10_000) as server:
        yield server


@pytest.fixture
async def shop(consul: servers.ConsulServer) -> AsyncIterator[Shop]:
    async with shop_on(consul.address) as made:
        yield made


async def test_r37_consuls_readers_and_dns_find_the_pods_and_lose_the_one_that_fails(
    shop: Shop, consul: servers.ConsulServer
) -> None:
    await shop.farm()
    await shop.publish(Catalog(tags=["edge"], meta={"team": "shop"}))
    await shop.passes(N1, N2)
    dns = (consul.host, consul.dns_port)
    names = await shop.reader.ask("catalog/services")
    assert names[shop.name] == ["edge"]
    assert await asyncio.to_thread(resolve, *dns, f"{shop.name}.service.consul", A) == [
        "10.0.0.1",
        "10.0.0.2",
    ]
    assert await asyncio.to_thread(resolve, *dns, f"edge.{shop.name}.service.consul", SRV) == [20001, 20002]
    await shop.pod("n2", 20002, state="critical")
    await shop.passes(N1)
    found = await shop.reader.all(shop.name)
    assert found == {await shop.entry("n1"): "passing", await shop.entry("n2"): "critical"}
    assert await asyncio.to_thread(resolve, *dns, f"{shop.name}.service.consul", A) == ["10.0.0.1"]
    one = (await shop.reader.ask(f"health/service/{shop.name}?passing"))[0]
    assert one["Node"]["Node"] == f"farmd-{shop.mark[:8]}-n1"
    assert one["Node"]["Meta"] == {"external-node": "true", "farmd-cluster": shop.mark}
    assert one["Service"]["Meta"] == {
        "team": "shop",
        "owner": f"rcs/{shop.rc.id}",
        "pod": "hello",
        "node": "n1",
        "version": shop.rc.manifest[:12],
    }
    await shop.cluster.client.delete(shop.cluster.keys.reality("n2", "hello"))

    async def gone() -> bool:
        return set(await shop.reader.all(shop.name)) == {await shop.entry("n1")}

    await eventually(gone, what="the pod that is gone is out of the catalogue")


async def test_the_built_in_server_keeps_a_catalogue_too() -> None:
    server = EmbeddedServer(CLOCK, rng=random.Random(1), ids=SystemIds())
    async with HttpFace(server) as face, shop_on(face.address) as shop:
        await shop.farm()
        await shop.publish(Catalog(tags=["edge"]))
        await shop.passes(N1, N2)
        assert (await shop.reader.ask("catalog/services"))[shop.name] == ["edge"]
        await shop.told("converged")
        await shop.pod("n2", 20002, state="critical")
        await shop.passes(N1)
        await shop.publish(None)

        async def clean() -> bool:
            marked = await shop.reader.ask(f"catalog/nodes?node-meta=farmd-cluster:{shop.mark}")
            return not marked and not await shop.reader.ask(f"health/service/{shop.name}")

        await eventually(clean, what="neither entries nor nodes")


async def test_a_service_that_does_not_ask_is_not_there_and_one_that_asks_no_more_goes(shop: Shop) -> None:
    await shop.farm()
    await shop.publish(Catalog(name=f"other-{shop.name}"))
    await shop.passes(N1, N2, name=f"other-{shop.name}")
    assert shop.name not in await shop.reader.ask("catalog/services")
    await shop.publish(Catalog(name=f"third-{shop.name}"))
    await shop.passes(N1, N2, name=f"third-{shop.name}")
    assert await shop.reader.all(f"other-{shop.name}") == {}
    await shop.publish(None)

    async def clean() -> bool:
        found: list[Any] = await shop.reader.ask(f"catalog/nodes?node-meta=farmd-cluster:{shop.mark}")
        return found == []

    await eventually(clean, what="neither entries nor nodes are left")


async def test_a_farm_with_services_catalog_all_registers_what_nobody_asked_for_and_others_leave_it_there(
    shop: Shop,
) -> None:
    """Also while a farm with the default has the leftovers; they go with the last farm that says all."""
    await shop.farm("asked")
    other = await shop.farm("all", sections={"services": ServicesSection(catalog="all")})
    await shop.passes(N1, N2)
    await shop.told("converged")
    await shop.publish(Catalog(tags=["edge"]))

    async def tagged() -> bool:
        names: dict[str, list[str]] = await shop.reader.ask("catalog/services")
        return names.get(shop.name) == ["edge"]

    await eventually(tagged, what="what the service says wins")
    await shop.publish(None)
    await shop.passes()
    store = ServiceStore(shop.cluster.client, shop.cluster.keys)
    stored = await store.find(shop.name)
    assert stored.record.catalog_off
    silent = structs.replace(stored.record, catalog_off=False)
    await shop.cluster.client.transaction([store.replace(stored, silent)])
    await shop.passes(N1, N2)
    await other.close()
    await shop.passes()


async def test_farms_and_agents_are_there_with_their_metrics_where_the_setting_says_so(shop: Shop) -> None:
    """An absent agent is critical for as long as its node is registered; a farm goes with its presence."""
    await shop.farm("plain")
    chosen = {"sections": {"services": ServicesSection(register_members=True)}}
    first = await shop.farm("one", address="https://farms.test:7520", **chosen)
    await shop.cluster.client.put(shop.cluster.keys.node("n1"), codec.encode(Node()))
    agents = {f"farmd-{shop.mark[:8]}-{node}": "passing" for node in ("n1", "n2")}

    async def states(name: str, expected: dict[str, str]) -> None:
        async def so() -> bool:
            marked = await shop.reader.ask(f"health/service/{name}?node-meta=farmd-cluster:{shop.mark}")
            found = {each["Node"]["Node"]: each["Checks"][-1]["Status"] for each in marked}
            return found == expected

        await eventually(so, what=f"{name}: {expected}")

    farm = f"farmd-{shop.mark[:8]}-one"
    await states("farmd-farm", {farm: "passing"})
    await states("farmd-agent", agents)
    (one,) = await shop.reader.ask(f"health/service/farmd-farm?node-meta=farmd-cluster:{shop.mark}")
    told = one["Service"]
    assert (told["Address"], told["Port"], told["Meta"]["scheme"]) == ("farms.test", 7520, "https")
    await shop.cluster.client.delete(shop.cluster.keys.agent("n1"))
    await shop.cluster.client.delete(shop.cluster.keys.agent("n2"))
    await states("farmd-agent", {f"farmd-{shop.mark[:8]}-n1": "critical"})
    await agent(shop.call, "n1", "http://10.0.0.1:8101")
    await states("farmd-agent", {f"farmd-{shop.mark[:8]}-n1": "passing"})
    second = await shop.farm("two", address="http://farms.test:7521", **chosen)
    await first.close()
    await states("farmd-farm", {f"farmd-{shop.mark[:8]}-two": "passing"})
    await second.close()
    await states("farmd-farm", {})
    await states("farmd-agent", {})


async def test_what_somebody_edits_or_removes_is_repaired_and_what_is_not_ours_stays(shop: Shop) -> None:
    farm = await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    node, ident = f"farmd-{shop.mark[:8]}-n1", await shop.entry("n1")
    theirs = {"ID": "theirs", "Service": f"theirs-{shop.name}", "Port": 1}
    await shop.reader.ask(
        "catalog/register", method="PUT", body={"Node": node, "SkipNodeUpdate": True, "Service": theirs}
    )
    wrong = {"ID": ident, "Service": shop.name, "Address": "10.9.9.9", "Port": 9}
    await shop.reader.ask(
        "catalog/register", method="PUT", body={"Node": node, "SkipNodeUpdate": True, "Service": wrong}
    )
    await shop.passes(N1, N2)
    gone = {"Node": node, "ServiceID": ident}
    await shop.reader.ask("catalog/deregister", method="PUT", body=gone)
    await shop.passes(N1, N2)
    await shop.reader.ask("catalog/deregister", method="PUT", body={"Node": f"farmd-{shop.mark[:8]}-n2"})
    await shop.passes(N1, N2)
    assert (await shop.reader.one(f"theirs-{shop.name}"))["Service"]["Port"] == 1
    assert farm.metric("farmd_catalog_drift_total") >= 1


async def test_a_node_that_is_somebody_elses_is_left_alone_and_the_others_are_kept(shop: Shop) -> None:
    node = f"farmd-{shop.mark[:8]}-n1"
    body = {"Node": node, "Address": "10.7.7.7", "NodeMeta": {"farmd-cluster": "another"}}
    await shop.reader.ask("catalog/register", method="PUT", body=body)
    await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N2)
    assert node in await shop.told("blocked")
    found = await shop.reader.ask(f"catalog/node/{node}")
    assert (found["Node"]["Address"], found["Node"]["Meta"]) == ("10.7.7.7", {"farmd-cluster": "another"})
    await shop.reader.ask("catalog/deregister", method="PUT", body={"Node": node})
    await shop.passes(N1, N2)


async def test_a_node_with_the_check_of_consuls_own_agents_gets_no_entry(shop: Shop) -> None:
    """Consul's next leader removes such a node with all that is on it."""
    node = f"farmd-{shop.mark[:8]}-n1"
    check = {"Node": node, "CheckID": "serfHealth", "Name": "serf", "Status": "passing"}
    body = {"Node": node, "Address": "10.0.0.1", "NodeMeta": catalog.meta_of(shop.mark), "Check": check}
    await shop.reader.ask("catalog/register", method="PUT", body=body)
    await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N2)
    assert node in await shop.told("blocked")
    gone = {"Node": node, "CheckID": "serfHealth"}
    await shop.reader.ask("catalog/deregister", method="PUT", body=gone)
    await shop.passes(N1, N2)


async def test_nodes_of_others_that_bear_our_mark_under_other_names_stall_nothing(shop: Shop) -> None:
    names = ["odd name/?&#", "näme", f"farmd-{shop.mark[:8]}-", f"farmd-{shop.mark[:8]}-..", "db"]
    await shop.cluster.client.transaction(
        [catalog.set_node(shop.mark, name, "10.9.9.9", 0) for name in names]
    )
    await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    await shop.pod("n2", 20002, state="critical")
    await shop.passes(N1)


async def test_r37_the_late_write_of_a_farm_that_lost_the_service_is_refused_as_a_whole(shop: Shop) -> None:
    farm = await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    lock = await shop.cluster.client.read(shop.cluster.keys.lock("catalog", shop.id))
    assert lock is not None
    fence = [
        operations.check_session(lock.key, lock.session),
        operations.check_index(lock.key, lock.modify_index),
    ]
    await farm.close()
    await shop.farm("two")
    late = (await shop.reader.ask(f"health/service/{shop.name}"))[0]["Service"]
    entry = catalog.Service(late["ID"], late["Service"], [], "10.6.6.6", 6, modify_index=late["ModifyIndex"])
    with pytest.raises(TransactionRejected):
        await shop.cluster.client.transaction(
            [*fence, catalog.set_service(f"farmd-{shop.mark[:8]}-n1", entry)]
        )
    await shop.passes(N1, N2)


async def test_a_farm_that_takes_over_goes_on_and_an_absent_agent_empties_no_answer(shop: Shop) -> None:
    first = await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    before = await shop.reader.ask(f"health/service/{shop.name}")
    await first.close()
    for node in ("n1", "n2"):
        await shop.cluster.client.delete(shop.cluster.keys.agent(node))
    second = await shop.farm("two")

    async def owned() -> bool:
        return shop.id in second.owned

    await eventually(owned, what="the second farm has the service")
    await shop.told("converged")
    await agent(shop.call, "n2", "http://10.0.0.2:8101")
    await shop.passes(N2)
    await agent(shop.call, "n1", "http://10.0.0.1:8101")
    await shop.passes(N1, N2)
    after = await shop.reader.ask(f"health/service/{shop.name}")
    assert [each["Service"]["CreateIndex"] for each in before] == [
        each["Service"]["CreateIndex"] for each in after
    ]


async def test_the_pods_of_the_version_that_a_rollout_brings_have_tags_of_their_own(shop: Shop) -> None:
    new = await controller(shop.call, f"{shop.name}-new", pod_command=["sleep", "10"])
    await agent(shop.call, "n3", "http://10.0.0.3:8101")
    await pod(shop.call, new, "n3", port=20003)
    await shop.farm()
    await shop.publish(Catalog(tags=["stable"], canary_tags=["canary"]))
    keys, client = shop.cluster.keys, shop.cluster.client
    rollout = Rollout(
        id=SystemIds().new(),
        name=shop.name,
        old=shop.rc.id,
        new=new.id,
        from_manifest=shop.rc.manifest,
        to_manifest=new.manifest,
        replicas=3,
        started_from=2,
        started_to=0,
    )
    entry = await client.read(keys.record("services", shop.id))
    assert entry is not None
    record = codec.decode(Service, entry.value, entry.key)
    both = codec.encode(structs.replace(record, active=[f"rcs/{shop.rc.id}", f"rcs/{new.id}"]))
    await client.transaction(
        [
            operations.put(keys.record("rollouts", rollout.id), codec.encode(rollout)),
            operations.put(entry.key, both),
        ]
    )
    await shop.passes(N1, N2, ("10.0.0.3", 20003))

    async def tagged() -> bool:
        found = await shop.reader.ask(f"health/service/{shop.name}?tag=canary")
        return [each["Service"]["Port"] for each in found] == [20003]

    await eventually(tagged, what="the new pod alone has the canary's tag")
    await client.delete(keys.record("rollouts", rollout.id))

    async def plain() -> bool:
        return len(await shop.reader.ask(f"health/service/{shop.name}?tag=stable")) == 3

    await eventually(plain, what="all pods have the usual tags")


class Foreigner:
    """Somebody else's program that registers, edits and removes what it likes, without a pause."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._ours = {node: catalog.node_name(shop.mark, node) for node in ("n1", "n2")}
        self.rounds = 0

    async def register(self, node: str, **body: Any) -> None:
        body = {"Node": self._ours[node], "SkipNodeUpdate": True, **body}
        await self._shop.reader.ask("catalog/register", method="PUT", body=body)

    async def wipe_meta(self, node: str, **meta: str) -> None:
        """Write a node as a program does that only wants to add its check."""
        address = f"10.0.0.{node[1:]}"
        await self.register(node, Address=address, SkipNodeUpdate=False, NodeMeta=meta)
        # Farms look at nodes once a minute, and when an instance comes.
        await self.register("n2", Service={"ID": "beside", "Service": "beside", "Port": 1})

    async def reached(self, rounds: int) -> bool:
        return self.rounds >= rounds

    async def keeps_editing(self, node: str) -> None:
        """Edit an entry and its check again and again, and register checks and instances beside it."""
        ident = await self._shop.entry(node)
        while True:
            self.rounds += 1
            wrong = {"ID": ident, "Service": self._shop.name, "Address": "10.6.6.6", "Port": self.rounds}
            check = {"CheckID": f"flood-{self.rounds % 50}", "Name": "f", "Status": "passing"}
            await self.register(node, Service=wrong, Check=check)
            beside = {"ID": f"flood-{self.rounds % 50}", "Service": "flood", "Port": self.rounds}
            await self.register(node, Service=beside)


async def test_a_program_that_edits_one_entry_without_a_pause_holds_up_no_other_one(shop: Shop) -> None:
    await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    foreign = Foreigner(shop)
    editing = asyncio.create_task(foreign.keeps_editing("n1"))

    async def so(present: bool) -> bool:
        assert not editing.done(), editing
        return (N2 in await shop.reader.passing(shop.name)) == present

    try:
        for state, present in (("critical", False), ("passing", True), ("critical", False)):
            await eventually(partial(foreign.reached, foreign.rounds + 20), what="the edits go on")
            await shop.pod("n2", 20002, state=state)
            await eventually(partial(so, present), what=f"n2 is {state} in the catalogue")
    finally:
        editing.cancel()
        await asyncio.gather(editing, return_exceptions=True)
    await shop.pod("n2", 20002)
    await shop.passes(N1, N2)


async def test_a_node_whose_mark_somebody_wiped_is_marked_again_and_its_pods_stay_followed(
    shop: Shop,
) -> None:
    await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    foreign = Foreigner(shop)
    await foreign.wipe_meta("n1")
    await shop.pod("n1", 20001, state="critical")
    await shop.passes(N2)

    async def marked() -> bool:
        found = await shop.reader.ask(f"catalog/nodes?node-meta=farmd-cluster:{shop.mark}")
        return [each["Node"] for each in found] == [f"farmd-{shop.mark[:8]}-n{number}" for number in (1, 2)]

    await eventually(marked, what="both nodes bear the mark")
    await shop.pod("n1", 20001)
    await shop.passes(N1, N2)


async def test_an_entry_on_a_node_that_somebody_took_goes_when_its_pod_fails_and_stays_while_it_serves(
    shop: Shop,
) -> None:
    await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    foreign = Foreigner(shop)
    await foreign.wipe_meta("n1", **{catalog.MARK: "another"})
    assert catalog.node_name(shop.mark, "n1") in await shop.told("blocked")
    await shop.passes(N1, N2)
    await shop.pod("n1", 20001, state="critical")
    await shop.passes(N2)
    found = await shop.reader.ask(f"catalog/node/{catalog.node_name(shop.mark, 'n1')}")
    assert (found["Node"]["Meta"], found["Services"]) == ({catalog.MARK: "another"}, {})


async def test_a_service_is_deleted_without_a_farm_and_the_next_farm_finds_what_is_left_of_it(
    shop: Shop,
) -> None:
    """Also where one of the same name was created meanwhile, whose entries stay."""
    first = await shop.farm()
    await shop.publish(Catalog())
    await shop.passes(N1, N2)
    await first.close()
    await commit(shop.call, await commands.delete(shop.call, shop.name))
    report = await examine(shop.cluster.client, shop.cluster.keys, CLOCK)
    left = {each.object for each in report.findings if each.code == "catalog-unasked"}
    old = {node: await shop.entry(node) for node in ("n1", "n2")}
    assert left == {f"catalog/{catalog.node_name(shop.mark, node)}/{ident}" for node, ident in old.items()}
    shop.id = await service(shop.call, shop.name, name=shop.name, catalog=Catalog())
    await shop.pod("n2", 20002, state="critical")
    await shop.farm("two")
    await shop.passes(N1)
    assert await shop.reader.all(shop.name) == {await shop.entry("n1"): "passing"}
