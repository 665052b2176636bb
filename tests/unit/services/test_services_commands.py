"""What people do with services, on the embedded store: what is written, and each refusal in one line."""

from __future__ import annotations

import msgspec
import pytest

from farmd.commands.bundled import Wish
from farmd.commands.mutation import Call, commit
from farmd.commands.parts import MOST_SERVICES
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC
from farmd.services import commands, document
from farmd.services.endpoints import serving
from store import codec
from store.entry import Stored
from store.errors import Conflict, InputInvalid, Locked, NotFound
from store.rcs import ReplicationControllerStore
from store.services import Service, ServiceStore
from tests.people import KEYS, person, snapshot
from tests.services import PORTS, agent, controller, pod, service


async def test_a_service_names_owners_by_id_and_creating_an_equal_one_changes_nothing() -> None:
    async with person() as call:
        rc = await controller(call)
        ident = await service(call, "rc/web")
        record = (await ServiceStore(call.client, KEYS).get(ident)).record
        assert (record.name, record.port, record.active) == ("web", "http", [f"rcs/{rc.id}"])
        before = await snapshot(call)
        for owners in (["web"], ["rc/web", f"rc/{rc.id}"]):
            assert not (await commands.create(call, "web", "http", owners)).needed
        assert await snapshot(call) == before
        with pytest.raises(Conflict, match=r"service 'web' exists and differs: port \(http -> admin\)"):
            await commands.create(call, "web", "admin", ["web"])


async def test_two_of_one_name_at_the_same_time_are_one() -> None:
    async with person() as call:
        await controller(call)
        first, second = [await commands.create(call, "web", port, ["web"]) for port in ("http", "admin")]
        await commit(call, first)
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, second)
        (stored,) = (await ServiceStore(call.client, KEYS).list()).items
        assert stored.record.port == "http"


@pytest.mark.parametrize(
    ("name", "port", "owner", "message"),
    [
        ("web", "htpp", "rc/web", r"port: found 'htpp', expected a port of rc/web: admin, http"),
        ("web", "http", "bare", r"expected a port of rc/bare: none, because its pods have no ports"),
        ("Web!", "http", "web", r"name: found 'Web!', expected 1 to 63 of a-z"),
        ("web", "", "web", r"port: found '', expected 1 to 63 of a-z"),
        ("web", "http", "node/n1", r"service: found 'node/n1', expected rc/NAME or daemonset/NAME"),
    ],
)
async def test_what_cannot_be_a_service_is_refused_in_one_line(
    name: str, port: str, owner: str, message: str
) -> None:
    async with person() as call:
        await controller(call)
        await controller(call, "bare", pod_ports={})
        before = await snapshot(call)
        with pytest.raises(InputInvalid, match=message):
            await commands.create(call, name, port, [owner])
        assert await snapshot(call) == before


async def test_an_owner_whose_deletion_saw_no_service_is_not_deleted_under_a_new_one() -> None:
    async with person() as call:
        rc = await controller(call, replicas=0)
        deletion = await RC.delete(call, "web", cascade=False)
        before = await ReplicationControllerStore(call.client, KEYS).get(rc.id)
        ident = await service(call, "rc/web")
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, deletion)
        after = await ReplicationControllerStore(call.client, KEYS).get(rc.id)
        assert after.record == before.record
        assert (await ServiceStore(call.client, KEYS).get(ident)).record.active == [f"rcs/{rc.id}"]


async def test_an_owner_that_goes_away_before_the_service_is_written_refuses_it() -> None:
    async with person() as call:
        rc = await controller(call)
        with pytest.raises(NotFound, match="rc 'nope' does not exist"):
            await commands.create(call, "web", "http", ["rc/nope"])
        late = await commands.create(call, "web", "http", ["rc/web"])
        await call.client.delete(KEYS.record("rcs", rc.id))
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, late)


async def test_a_controller_in_the_middle_of_a_rollout_gets_no_service_that_knows_only_half_of_it() -> None:
    async with person() as call:
        rc = await controller(call)
        stored = await ReplicationControllerStore(call.client, KEYS).get(rc.id)
        managed = msgspec.structs.replace(rc, managed_by="rollouts/0a")
        await call.client.put(stored.key, codec.encode(managed))
        with pytest.raises(Conflict, match="rc/web is managed by rollouts/0a, which does not exist"):
            await commands.create(call, "web", "http", ["web"])


async def test_a_daemon_set_serves_as_a_controller_does() -> None:
    async with person() as call:
        document = {"name": "proxy", "pod": {"id": "proxy", "command": ["sleep", "9"], "ports": PORTS}}
        made = await DAEMON_SET.create(call, DAEMON_SET.file.parse(document, "x"))
        await commit(call, made)
        ident = await service(call, "ds/proxy", name="proxy")
        record = (await ServiceStore(call.client, KEYS).get(ident)).record
        assert record.active == [f"daemonsets/{made.change.id}"]
        assert (await commands.row(call, "proxy")).serving == ["daemonset/proxy"]


async def test_r13_a_locked_service_stays_and_a_deleted_one_leaves_nothing() -> None:
    async with person(reason="its holder is gone") as call:
        await controller(call)
        before = set(await snapshot(call))
        ident = await service(call, "web")
        lock = KEYS.mutation_lock("services", ident)
        session = await call.client.create_session(name="somebody", ttl=3600)
        await call.client.put(lock, b"user/ada/n@1800000000", acquire=session)
        with pytest.raises(Locked, match="service 'web' is locked by user/ada since 2027-"):
            await commands.delete(call, "web")
        await call.client.delete(lock)
        mutation = await commands.delete(call, "web")
        assert mutation.change.destructive
        await commit(call, mutation)
        assert {key for key in set(await snapshot(call)) - before if "/audit/" not in key} == set()


async def test_r14_an_owner_that_is_deleted_leaves_the_services_of_others_in_one_transaction() -> None:
    async with person() as call:
        rc, other = await controller(call, replicas=0), await controller(call, "other", replicas=0)
        for name, owners in (("shop", ["web", "other"]), ("inner", ["other", "web"]), ("alone", ["web"])):
            await service(call, *owners, name=name)
        before = {each.record.name: each for each in (await ServiceStore(call.client, KEYS).list()).items}
        mutation = await RC.delete(call, "web", cascade=False)
        assert mutation.change.before["services"] == "inner,shop"
        late = await commands.delete(call, "shop")
        await commit(call, mutation)
        after = {each.record.name: each for each in (await ServiceStore(call.client, KEYS).list()).items}
        theirs = [f"rcs/{other.id}"]
        assert {name: each.record.active for name, each in after.items()} == {
            "shop": theirs,
            "inner": theirs,
            "alone": [f"rcs/{rc.id}"],
        }
        assert before["alone"].index == after["alone"].index
        assert before["shop"].index < after["shop"].index == after["inner"].index
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, late)


async def test_r14_of_two_owners_that_go_at_once_one_comes_first_and_the_other_stays_named() -> None:
    async with person() as call:
        await controller(call, replicas=0)
        other = await controller(call, "other", replicas=0)
        await service(call, "web", "other")
        both = [await RC.delete(call, name, cascade=False) for name in ("web", "other")]
        await commit(call, both[0])
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, both[1])
        await commit(call, await RC.delete(call, "other", cascade=False))
        assert (await ServiceStore(call.client, KEYS).find("web")).record.active == [f"rcs/{other.id}"]


async def test_r14_an_owner_of_more_services_than_a_transaction_has_room_for_goes_nevertheless() -> None:
    async with person() as call:
        rc = await controller(call, replicas=0)
        await controller(call, "other", replicas=0)
        for number in range(MOST_SERVICES + 30):
            await service(call, "web", "other", name=f"s{number:02}")
        await commit(call, await RC.delete(call, "web", cascade=False))
        listed = (await ServiceStore(call.client, KEYS).list()).items
        assert sum(f"rcs/{rc.id}" in each.record.active for each in listed) == 30


async def test_owners_that_are_gone_are_told_and_have_no_endpoints() -> None:
    async with person() as call:
        rc = await controller(call)
        await agent(call, "n1")
        await pod(call, rc, "n1")
        await service(call, "web")
        assert [(row.serving, row.gone) for row in (await commands.rows(call))[0]] == [(["rc/web"], [])]
        await call.client.delete(KEYS.record("rcs", rc.id))
        row = await commands.row(call, "web")
        assert (row.serving, row.gone) == ([], [f"rcs/{rc.id}"])
        assert await commands.PodsWatch(call, "web").look() == (row.record, [])


async def test_r22_an_endpoint_is_a_pod_that_was_available_for_long_enough_as_this_process_saw_it() -> None:
    async with person() as call:
        rc = await controller(call, min_healthy_time=10)
        for node in ("n1", "n2", "n3"):
            await agent(call, node)
        await pod(call, rc, "n1", port=20001)
        await pod(call, rc, "n2", port=20002, state="critical")
        await service(call, "web")
        watch = commands.PodsWatch(call, "web")

        async def found() -> list[str]:
            _, sightings = await watch.look()
            return [f"{each.address}:{each.port}" for each in serving(sightings, ())]

        assert await found() == ["n1.test:20001"]  # its health is older than this process
        await pod(call, rc, "n2", port=20002)
        await pod(call, rc, "n3", port=20003)
        assert await found() == ["n1.test:20001"]
        await call.clock.sleep(10.0)
        assert await found() == ["n1.test:20001", "n2.test:20002", "n3.test:20003"]
        await pod(call, rc, "n3", port=20003, state="critical")
        assert await found() == ["n1.test:20001", "n2.test:20002"]


async def test_r21_absent_agents_take_the_last_endpoint_away_from_nobody() -> None:
    async with person() as call:
        rc = await controller(call)
        for node in ("n1", "n2"):
            await agent(call, node)
            await pod(call, rc, node)
        await service(call, "web")
        watch = commands.PodsWatch(call, "web")
        both = serving((await watch.look())[1], ())
        assert [each.node for each in both] == ["n1", "n2"]
        await call.client.delete(KEYS.agent("n1"))
        one = serving((await watch.look())[1], both)
        assert [each.node for each in one] == ["n2"]
        await call.client.delete(KEYS.agent("n2"))
        assert serving((await watch.look())[1], one) == one


async def test_a_pod_without_the_port_and_an_agent_without_an_address_are_no_endpoints() -> None:
    async with person() as call:
        rc = await controller(call)
        ident = await service(call, "web")
        await agent(call, "n1")
        await pod(call, rc, "n1")
        await pod(call, rc, "n2")
        await call.client.put(KEYS.agent("n2"), b'{"node": 3}')
        store = ServiceStore(call.client, KEYS)
        assert len(serving((await commands.PodsWatch(call, "web").look())[1], ())) == 1
        stored = await store.get(ident)
        renamed: Service = msgspec.structs.replace(
            stored.record, port="gone", active=[*stored.record.active, "?"]
        )
        await call.client.put(stored.key, codec.encode(renamed))
        assert serving((await commands.PodsWatch(call, "web").look())[1], ()) == ()


async def _front(call: Call, pods: list[str], port: str = "http") -> tuple[Stored[Service], Wish]:
    """A service that names rc/web, and a document of it with these pods."""
    await controller(call)
    await controller(call, "db")
    await service(call, "rc/web", name="front")
    spec = document.parse({"name": "front", "pods": pods, "port": port}, "x")
    return await ServiceStore(call.client, KEYS).find("front"), Wish(
        "front", spec, frozenset({"pods", "port"})
    )


async def test_a_document_changes_the_port_only_to_one_that_its_owners_have() -> None:
    async with person() as call:
        stored, wish = await _front(call, ["rc/web"], "htpp")
        with pytest.raises(InputInvalid, match=r"port: found 'htpp', expected a port of rc/web: admin, http"):
            await document.update(call, stored, wish)
        admin = Wish("front", msgspec.structs.replace(wish.spec, port="admin"), wish.stated)
        await commit(call, await document.update(call, stored, admin))
        assert (await ServiceStore(call.client, KEYS).find("front")).record.port == "admin"


@pytest.mark.parametrize(("manager", "same"), [("rollouts/0a", True), ("deployments/0a", False)])
async def test_only_a_rollout_makes_another_owner_no_difference(manager: str, same: bool) -> None:
    """A deployment manages the owners of many services, and makes none of them another's successor."""
    async with person() as call:
        stored, wish = await _front(call, ["rc/db"])
        for name in ("web", "db"):
            found = await ReplicationControllerStore(call.client, KEYS).find(name)
            managed = msgspec.structs.replace(found.record, managed_by=manager)
            await call.client.put(found.key, codec.encode(managed))
        _, after = await document.differs(call, stored, wish)
        assert after == ({} if same else {"pods": "rc/db"})


@pytest.mark.parametrize("owner", ["job/x", "rc/we/b", "rc/", "/"])
async def test_a_document_of_what_owns_no_pods_differs_and_is_refused_when_it_is_carried_out(
    owner: str,
) -> None:
    async with person() as call:
        stored, wish = await _front(call, [owner])
        _, after = await document.differs(call, stored, wish)
        assert after == {"pods": owner}
        with pytest.raises((InputInvalid, NotFound)):
            await document.update(call, stored, wish)
