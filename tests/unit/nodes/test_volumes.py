"""Named volumes: noted once, on one node, and kept while anything mounts them or their node is absent."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.commands.mutation import Call, Mutation, commit
from farmd.nodes import volumes
from farmd.nodes.forgetting import forget
from farmd.replication.commands import RC
from scheduler.fleet import node_view
from store import codec
from store.deployments import Deployment, Goal
from store.errors import Conflict, InputInvalid, NotFound, RecordInvalid
from store.nodes import MOST, Agent, Node, NodeVolume
from store.registration import register_node
from store.services import Service, ServiceStore, Version
from store.work import Work
from tests.people import KEYS, person, snapshot

DATA = NodeVolume()
MOUNTING = {
    "name": "db",
    "replicas": 0,
    "pod": {
        "id": "db",
        "runtime": "container",
        "container": {"image": "postgres:16"},
        "mounts": [{"type": "volume", "source": "shop_data", "target": "/data"}],
    },
}


async def fleet(call: Call, *names: str, **fields: Any) -> None:
    for name in names:
        await register_node(call.client, KEYS, name)
        await call.client.put(KEYS.node(name), codec.encode(Node(**fields)))


async def done(call: Call, mutation: Mutation) -> Mutation:
    await commit(call, mutation)
    return mutation


async def where(call: Call) -> list[tuple[str, str]]:
    found, _ = await volumes.rows(call)
    return [(row.name, row.node) for row in found]


async def test_a_volume_is_noted_on_its_node_and_placement_sees_it_also_while_the_agent_is_absent() -> None:
    async with person() as call:
        await fleet(call, "m1", "m2")
        made = await done(call, await volumes.create(call, "shop_data", "m2", NodeVolume(driver="nfs")))
        assert (made.change.after, made.change.object) == ({"volumes.shop_data": "nfs"}, "volume/shop_data")
        (row,), _ = await volumes.rows(call)
        assert (row.name, row.node, row.driver, row.state) == ("shop_data", "m2", "nfs", "absent")
        entry = await call.client.read(KEYS.node("m2"))
        assert entry is not None
        node = codec.decode(Node, entry.value, entry.key)
        for absent in (True, False):
            view = node_view("m2", node=node, agent=Agent(node="m2", version="1"), absent=absent)
            assert view.labels == {"node": "m2", "volume/shop_data": ""}
        assert not (await volumes.create(call, "shop_data", "m2", NodeVolume(driver="nfs"))).needed
        with pytest.raises(Conflict, match="is on m2 with another driver"):
            await volumes.create(call, "shop_data", "m2", DATA)


async def test_of_two_who_make_one_volume_on_two_nodes_one_is_refused() -> None:
    async with person() as call:
        await fleet(call, "m1", "m2")
        first = await volumes.create(call, "shop_data", "m1", DATA)
        second = await volumes.create(call, "shop_data", "m2", DATA)
        await commit(call, first)
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, second)
        assert await where(call) == [("shop_data", "m1")]
        with pytest.raises(Conflict, match="volume 'shop_data' is on m1"):
            await volumes.create(call, "shop_data", "m2", DATA)
        await done(call, await volumes.create(call, "shop_data", "m2", DATA, beside=True))
        assert await where(call) == [("shop_data", "m1"), ("shop_data", "m2")]


async def test_a_name_is_free_again_once_the_last_of_its_volumes_is_forgotten() -> None:
    async with person() as call:
        await fleet(call, "m1", "m2")
        before = await snapshot(call)
        await done(call, await volumes.create(call, "shop_data", "m1", DATA))
        await done(call, await volumes.create(call, "shop_data", "m2", DATA, beside=True))
        with pytest.raises(Conflict, match="is on m1, m2"):
            await volumes.delete(call, "shop_data")
        gone = await done(call, await volumes.delete(call, "shop_data", "m1"))
        assert gone.change.destructive
        assert gone.change.details[1].startswith("its data stays on m1: podman volume rm shop_data")
        assert await call.client.read(KEYS.name("volumes", "shop_data")) is not None
        await done(call, await volumes.delete(call, "shop_data"))
        after = {key: value for key, value in (await snapshot(call)).items() if "/audit/" not in key}
        assert after == before
        for node in ("", "m1"):
            with pytest.raises(NotFound):
                await volumes.delete(call, "shop_data", node)


async def test_a_copy_that_is_made_meanwhile_keeps_the_name() -> None:
    async with person() as call:
        await fleet(call, "m1", "m2")
        await done(call, await volumes.create(call, "shop_data", "m1", DATA))
        last = await volumes.delete(call, "shop_data")
        await done(call, await volumes.create(call, "shop_data", "m2", DATA, beside=True))
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, last)


async def test_a_volume_that_anything_mounts_is_not_forgotten() -> None:
    async with person() as call:
        await fleet(call, "m1")
        await done(call, await volumes.create(call, "shop_data", "m1", DATA))
        made = await done(call, await RC.create(call, RC.file.parse(MOUNTING, "x")))
        with pytest.raises(Conflict, match=r"volume 'shop_data' is mounted by rc/db$"):
            await volumes.delete(call, "shop_data")
        version = Version(manifest=made.change.manifest)
        web = Service(id="5e", name="web", mode="replicated", version=version)
        await call.client.transaction(list(ServiceStore(call.client, KEYS).create(web)))
        stored = await RC.records(call.client, KEYS).find("db")
        part = codec.decode(dict[str, Any], stored.raw or codec.encode(stored.record), stored.key)
        await call.client.put(stored.key, codec.encode(part | {"part_of": "services/5e"}))
        goal = Goal(service="6f", name="next", owner="rcs/1", wanted=version)
        coming = Deployment(id="de", name="de", goals=[goal])
        await call.client.put(KEYS.record("deployments", "de"), codec.encode(coming))
        with pytest.raises(Conflict, match=r"is mounted by service/next, service/web$"):
            await volumes.delete(call, "shop_data")


async def test_a_volume_of_a_lost_node_is_forgotten_once_another_has_it_although_it_is_mounted() -> None:
    async with person() as call:
        await fleet(call, "m1", "m2")
        await done(call, await volumes.create(call, "shop_data", "m1", DATA))
        await done(call, await RC.create(call, RC.file.parse(MOUNTING, "x")))
        await done(call, await volumes.create(call, "shop_data", "m2", DATA, beside=True))
        with pytest.raises(Conflict, match="is mounted by rc/db"):
            await volumes.delete(call, "shop_data", "m1")
        await call.client.put(KEYS.work("nodes", "m1"), codec.encode(Work(lost_since=900.0)))
        await done(call, await volumes.delete(call, "shop_data", "m1"))
        assert await where(call) == [("shop_data", "m2")]
        await call.client.put(KEYS.work("nodes", "m2"), codec.encode(Work(lost_since=900.0)))
        with pytest.raises(Conflict) as refused:
            await volumes.delete(call, "shop_data")
        assert "m2 is lost: farmctl volume create shop_data --beside" in str(refused.value.fields["hint"])


async def test_a_node_with_volumes_is_not_forgotten_before_they_are() -> None:
    async with person() as call:
        await fleet(call, "m1", cordoned=True, volumes={"shop_data": DATA})
        with pytest.raises(Conflict, match="node 'm1' has the volumes shop_data") as refused:
            await forget(call, "m1")
        assert "farmctl volume delete --node m1" in str(refused.value.fields["hint"])
        await done(call, await volumes.delete(call, "shop_data"))
        await done(call, await forget(call, "m1"))


async def test_a_node_whose_record_does_not_decode_is_not_forgotten_with_its_volumes() -> None:
    async with person() as call:
        await fleet(call, "m1")
        await done(call, await volumes.create(call, "shop_data", "m1", DATA))
        await call.client.put(KEYS.node("m1"), b'{"labels": 3}')
        await call.client.put(KEYS.work("nodes", "m1"), codec.encode(Work(lost_since=900.0)))
        with pytest.raises(Conflict, match="node 'm1' has the volumes shop_data"):
            await forget(call, "m1")
        with pytest.raises(RecordInvalid):
            await volumes.delete(call, "shop_data")


async def test_bad_names_unknown_nodes_and_one_volume_too_many_are_refused() -> None:
    async with person() as call:
        await fleet(call, "m1", volumes={f"v{number}": DATA for number in range(MOST)})
        for name in ("", "a/b", "x" * 64, "-a"):
            with pytest.raises(InputInvalid, match="1 to 63 of letters"):
                await volumes.create(call, name, "m1", DATA)
        with pytest.raises(NotFound):
            await volumes.create(call, "more", "m9", DATA)
        with pytest.raises(Conflict, match=f"has {MOST}, expected at most {MOST}"):
            await volumes.create(call, "more", "m1", DATA)
