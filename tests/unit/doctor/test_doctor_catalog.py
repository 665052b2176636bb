"""What the doctor finds of the cluster's entries in Consul's catalogue, and takes away when it is told to."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.commands.mutation import Call, commit
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.doctor.model import Finding
from store import catalog, codec
from store.catalog import Check, Service, Standing
from store.errors import Conflict
from store.farms import Member
from store.registration import cluster_id
from store.services import Catalog, ServiceStore
from store.services import Service as Asked
from store.status import Status
from tests.people import KEYS, person

WEB, GONE = "aaaa0000aaaa0000", "dead0000dead0000"


class World:
    """A service ``web`` that asks for the catalogue, with its entry on n1."""

    def __init__(self, call: Call, cluster: str) -> None:
        self.call, self.cluster = call, cluster
        self.node = catalog.node_name(cluster, "n1")

    def entry(self, service: str = WEB, name: str = "web") -> Standing:
        ident = catalog.service_id(self.cluster, service, "n1", "p~0")
        made = Service(ident, name, address="10.0.0.1", port=80)
        return Standing(
            self.node, made, Check(self.node, catalog.check_id(ident), "passing", "", ident, name)
        )

    async def register(self, entry: Standing) -> None:
        assert entry.check is not None
        writes = [catalog.set_service(entry.node, entry.service), catalog.set_check(entry.check)]
        await self.call.client.transaction(writes)

    async def found(self) -> list[Finding]:
        report = await examine(self.call.client, KEYS, self.call.clock)
        return [each for each in report.findings if each.code.startswith("catalog-")]

    async def codes(self) -> list[tuple[str, str]]:
        return [(each.code, each.object) for each in await self.found()]

    async def say(self, found: Catalog | None) -> None:
        store = ServiceStore(self.call.client, KEYS)
        stored = await store.find("web")
        changed = Asked(id=WEB, name="web", port="http", catalog=found)
        await self.call.client.transaction([store.replace(stored, changed)])


@pytest.fixture
async def world() -> Any:
    async with person(reason="a test") as call:
        made = World(call, await cluster_id(call.client, KEYS))
        store = ServiceStore(call.client, KEYS)
        await call.client.transaction(
            list(store.create(Asked(id=WEB, name="web", port="http", catalog=Catalog())))
        )
        await call.client.transaction([catalog.set_node(made.cluster, made.node, "10.0.0.1", 0)])
        await made.register(made.entry())
        yield made


async def test_entries_as_they_should_be_are_no_finding_and_are_counted(world: World) -> None:
    report = await examine(world.call.client, KEYS, world.call.clock)
    assert await world.found() == []
    assert report.facts["entries in consul's catalogue"] == "1, services that request them: 1"


async def test_entries_that_no_service_asks_for_are_removed_by_fix_with_proof(world: World) -> None:
    left = world.entry(GONE, "old")
    await world.register(left)
    (finding,) = await world.found()
    assert (finding.code, finding.object) == ("catalog-unasked", f"catalog/{left.node}/{left.service.id}")
    await world.say(None)
    found = await world.found()
    assert [each.code for each in found] == ["catalog-unasked"] * 2
    mutations = await fixes.mutations(world.call, found)
    await world.say(Catalog(tags=["back"]))
    ours = next(each for each in mutations if each.change.id == WEB)
    with pytest.raises(Conflict):
        await commit(world.call, ours)
    (again,) = [each for each in await world.found() if each.code == "catalog-unasked"]
    for mutation in await fixes.mutations(world.call, fixes.choose([again], ["catalog-unasked"])):
        await commit(world.call, mutation)
    left_over = (await catalog.services(world.call.client, [world.node]))[world.node]
    assert left_over is not None
    assert set(left_over[1]) == {world.entry().service.id}


async def test_a_farm_that_registers_all_services_asks_for_them(world: World) -> None:
    await world.say(None)
    farm = Member(id="one", version="1", features=[catalog.ALL])
    session = await world.call.client.create_session(name="present", ttl=3600)
    await world.call.client.put(KEYS.farm("one"), codec.encode(farm), acquire=session)
    assert await world.found() == []


async def test_a_name_that_others_register_too(world: World) -> None:
    await world.call.client.transaction([catalog.set_node("another", "db", "10.0.0.9", 0)])
    await world.register(
        Standing("db", Service("theirs", "web"), Check("db", "x", "passing", "", "theirs", "web"))
    )
    (finding,) = await world.found()
    assert (finding.code, finding.object) == ("catalog-name", "catalog/web")
    assert "'theirs' on node db" in finding.explanation


@pytest.mark.parametrize("how", ["mark", "serf", "name"])
async def test_a_node_that_farms_refuse_is_named_with_the_reason(world: World, how: str) -> None:
    name, expected = world.node, "a check named serfHealth"
    if how == "serf":
        await world.call.client.transaction([catalog.set_check(Check(name, "serfHealth", "passing"))])
    elif how == "name":
        name, expected = "db", "the mark of this cluster and a name that farmd gives to no node"
        await world.call.client.transaction([catalog.set_node(world.cluster, name, "10.0.0.2", 0)])
    else:
        name, expected = catalog.node_name(world.cluster, "n2"), "its meta farmd-cluster is 'another'"
        await world.call.client.transaction([catalog.set_node("another", name, "10.0.0.2", 0)])
    (finding,) = await world.found()
    assert (finding.code, finding.object) == ("catalog-node", f"catalog/{name}")
    assert expected in finding.explanation


async def test_drift_is_named_entry_by_entry(world: World) -> None:
    status = Status(state="converged", placed=2, desired=2)
    await world.call.client.put(KEYS.status("catalog", WEB), codec.encode(status))
    (finding,) = await world.found()
    assert (finding.code, finding.object) == ("catalog-drift", "catalog/web")
    assert "1 of 2 entries are missing" in finding.explanation
    await world.say(Catalog(tags=["edge"]))
    (finding,) = await world.found()
    assert "has the tags none" in finding.explanation
    await world.call.client.transaction([catalog.set_service(world.node, Service("theirs", "other"))])
    assert [each for each in await world.codes() if each[1] == f"catalog/{world.node}/theirs"]
