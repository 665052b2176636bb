"""Whose pods a service names while a rollout lasts and after it, and what its beginning refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from farmd.rollout import creation, noun, writes
from farmd.services import commands
from store.errors import Conflict, InputInvalid
from store.policies import Policy
from store.rollouts import STAGED, Rollout
from store.services import Service, ServiceStore
from tests.people import KEYS, person, snapshot
from tests.rollout_worlds import NEW, OLD, rollout
from tests.services import PORTS

OLDER, NEWER, OTHER = f"rcs/{OLD}", f"rcs/{NEW}", "rcs/00cc"
GREEN = Policy(strategy="blue-green")


@pytest.mark.parametrize(
    ("policy", "active", "after"),
    [
        (Policy(), [OLDER], [OLDER, NEWER]),
        (Policy(), [OTHER, OLDER], [OTHER, OLDER, NEWER]),
        (Policy(), [NEWER, OLDER], [NEWER, OLDER]),
        (Policy(), [], [OLDER, NEWER]),
        (Policy(strategy="availability"), [OLDER], [OLDER, NEWER]),
        (GREEN, [OLDER], [OLDER]),
        (GREEN, [], [OLDER]),
        (GREEN, [NEWER], [NEWER]),
        (Policy(), [OTHER, NEWER], [OTHER, NEWER]),
    ],
)
def test_t1_both_versions_serve_but_before_a_switch_only_the_old_one(
    policy: Policy, active: list[str], after: list[str]
) -> None:
    assert writes.begins(active, OLDER, NEWER, policy) == after


@pytest.mark.parametrize(
    ("outcome", "fields", "active", "stay", "after"),
    [
        ("done", {}, [OLDER, NEWER], [NEW], [NEWER]),
        ("done", {}, [OLDER], [NEW], [NEWER]),
        ("done", {}, [OTHER, OLDER, NEWER], [NEW], [OTHER, NEWER]),
        ("done", {"policy": {"leave_old": True}}, [OLDER, NEWER], [OLD, NEW], [OLDER, NEWER]),
        ("done", {"policy": {"leave_old": True}}, [NEWER], [OLD, NEW], [NEWER]),
        ("reverted", {}, [OLDER, NEWER], [OLD], [OLDER]),
        ("reverted", {}, [NEWER], [OLD], [OLDER]),
        ("reverted", {"created_new": False}, [OLDER, NEWER], [OLD, NEW], [OLDER]),
        ("reverted", {"created_new": False, "started_to": 2}, [OLDER, NEWER], [OLD, NEW], [OLDER, NEWER]),
        ("aborted", {}, [OLDER, NEWER], [OLD, NEW], [OLDER, NEWER]),
        ("aborted", {}, [OLDER], [OLD, NEW], [OLDER]),
        ("aborted", {}, [OLDER], [NEW], [NEWER]),
        ("aborted", {}, [OLDER, NEWER], [], []),
    ],
)
def test_t8_those_serve_that_stay(
    outcome: Any, fields: dict[str, Any], active: list[str], stay: list[str], after: list[str]
) -> None:
    record = msgspec.structs.replace(rollout(4, 3), **{k: v for k, v in fields.items() if k != "policy"})
    assert writes.ends(active, record, outcome, stay) == after


@given(
    active=st.lists(st.sampled_from([OLDER, NEWER, OTHER, "daemonsets/0a"]), unique=True), back=st.booleans()
)
def test_t5_a_switch_is_one_list_for_another_and_keeps_what_is_not_the_rollouts(
    active: list[str], back: bool
) -> None:
    gone, stays = (NEWER, OLDER) if back else (OLDER, NEWER)
    after = writes.switches(active, gone, stays)
    assert gone not in after
    assert after.count(stays) == 1
    assert [ref for ref in after if ref != stays] == [ref for ref in active if ref not in (gone, stays)]
    assert writes.switches(after, gone, stays) == after


# -- at the beginning ---------------------------------------------------------------------------
def document(command: str = "first", **fields: Any) -> dict[str, Any]:
    pod = {"id": "web", "command": [command], "ports": PORTS, **fields.pop("pod", {})}
    return {"name": "web", "replicas": 4, "pod": pod} | fields


async def created(call: Call, **fields: Any) -> str:
    mutation = await RC.create(call, RC.file.parse(document(**fields), "x"))
    await commit(call, mutation)
    return mutation.change.id


async def update(call: Call, **fields: Any) -> Any:
    return await RC.update(call, RC.file.parse(document("second", **fields), "x"), now=False)


async def live(call: Call) -> Rollout:
    stored, _ = await noun.ROLLOUT.records(call.client, call.keys).named("web")
    assert stored is not None
    return stored.record


async def actives(call: Call) -> dict[str, list[str]]:
    found = await ServiceStore(call.client, KEYS).list()
    return {stored.record.name: stored.record.active for stored in found.items}


async def test_t1_every_service_of_the_controller_names_both_from_the_beginning() -> None:
    async with person() as call:
        old = await created(call)
        for name, port in (("public", "http"), ("inner", "admin")):
            await commit(call, await commands.create(call, name, port, ["web"]))
        await commit(call, await commands.create(call, "empty", "http", []))
        await commit(call, await update(call))
        begun = await live(call)
        both = [f"rcs/{old}", f"rcs/{begun.new}"]
        assert await actives(call) == {"public": both, "inner": both, "empty": []}
        assert STAGED in begun.needs
        used = (await ServiceStore(call.client, KEYS).get(begun.service)).record.name
        with pytest.raises(Conflict, match=f"service '{used}' is used by rollout/web"):
            await commands.delete(call, used)


async def test_r12_a_service_that_changed_meanwhile_refuses_the_beginning() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await commands.create(call, "public", "http", ["web"]))
        late = await update(call)
        store = ServiceStore(call.client, KEYS)
        stored = await store.find("public")
        await call.client.transaction([store.activate(stored, [])])
        before = await snapshot(call)
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, late)
        assert await snapshot(call) == before


async def test_r13_a_service_that_a_rollout_uses_meanwhile_is_not_deleted() -> None:
    """A blue-green rollout leaves its service as it is until the switch."""
    async with person() as call:
        await created(call, rollout={"strategy": "blue-green"})
        await commit(call, await commands.create(call, "public", "http", ["web"]))
        late = await commands.delete(call, "public")
        await commit(call, await update(call, rollout={"strategy": "blue-green"}))
        before = await snapshot(call)
        with pytest.raises(Conflict, match="changed since it was read"):
            await commit(call, late)
        assert await snapshot(call) == before


async def test_a_version_without_the_port_of_a_service_is_refused() -> None:
    async with person() as call:
        await created(call)
        await commit(call, await commands.create(call, "public", "http", ["web"]))
        with pytest.raises(InputInvalid, match="found admin, expected 'http' too: service public names it"):
            await update(call, pod={"ports": {"admin": {"port": 0}}})


async def test_a_service_that_is_named_is_made_of_the_only_port() -> None:
    async with person() as call:
        old = await created(call, pod={"ports": {"http": {"port": 0}}})
        mutation = await RC.create(call, RC.file.parse(document("second") | {"name": "green"}, "x"))
        await commit(call, mutation)
        with pytest.raises(InputInvalid, match="found the ports admin, http, expected one"):
            await creation.toward(call, "web", "green", service="shop")
        with pytest.raises(InputInvalid, match="service: found 'Shop!'"):
            await creation.toward(call, "web", "green", service="Shop!")
        one = RC.file.parse(document("third", pod={"ports": {"http": {"port": 0}}}) | {"name": "other"}, "x")
        await commit(call, await RC.create(call, one))
        await commit(call, await creation.toward(call, "web", "other", service="shop"))
        begun = await live(call)
        record: Service = (await ServiceStore(call.client, KEYS).get(begun.service)).record
        assert (record.name, record.port) == ("shop", "http")
        assert record.active == [f"rcs/{old}", f"rcs/{begun.new}"]


async def test_the_way_back_from_an_aborted_blue_green_rollout_takes_its_service_along() -> None:
    """Before the switch the service names the old version alone, which is to come back."""
    async with person() as call:
        old = await created(call)
        await commit(call, await RC.create(call, RC.file.parse(document("second") | {"name": "green"}, "x")))
        await commit(call, await commands.create(call, "public", "http", ["web"]))
        back = await creation.toward(call, "green", "web", policy=GREEN, replicas=8)
        await commit(call, back)
        assert await actives(call) == {"public": [f"rcs/{old}"]}
        stored, _ = await noun.ROLLOUT.records(call.client, call.keys).named("green")
        assert stored is not None
        assert (await ServiceStore(call.client, KEYS).get(stored.record.service)).record.name == "public"


async def test_one_service_that_does_not_decode_stops_no_rollout() -> None:
    async with person() as call:
        await created(call)
        await call.client.put(KEYS.record("services", "0a"), b"{")
        await commit(call, await update(call))
        assert (await live(call)).service == ""


async def test_too_many_services_are_refused() -> None:
    async with person() as call:
        await created(call)
        for number in range(writes.MOST_SERVICES + 1):
            await commit(call, await commands.create(call, f"s{number}", "http", ["web"]))
        with pytest.raises(InputInvalid, match="11 services name web, expected at most 10"):
            await update(call)
