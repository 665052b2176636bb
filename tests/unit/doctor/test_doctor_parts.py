"""What the doctor says of parts of services and apps, of hooks, and of volumes; its fixes keep all data."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd import overview
from farmd.apps.revision import wanted
from farmd.apps.scene import standing
from farmd.commands.mutation import Call, commit
from farmd.commands.restarting import restart
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.doctor.model import Report
from farmd.nodes import facts, volumes
from farmd.replication.commands import RC
from store import apps, codec
from store.apps import App, AppStore
from store.deployments import KIND as DEPLOYMENTS
from store.deployments import Deployment
from store.errors import Conflict, NotFound
from store.nodes import Node, NodeStore, NodeVolume
from store.pods import Pod
from store.reality import Intent
from store.registration import register_node
from store.services import KIND, Service, ServiceStore
from tests.people import KEYS, created, person

WEB, DEPLOYMENT, GONE = "5e" * 8, "de" * 8, "dead0000dead0000"
HOOK = "web-hook~0"
OF_APPS = ("part-of-nobody", "stale-tracker")


async def put(call: Call, key: str, record: Any) -> None:
    await call.client.put(key, codec.encode(record))


async def look(call: Call) -> Report:
    return await examine(call.client, KEYS, call.clock)


async def found(call: Call, *codes: str) -> list[tuple[str, str]]:
    findings = (await look(call)).findings
    return [(each.code, each.object) for each in findings if each.code in codes]


async def fix(call: Call, target: str) -> None:
    findings = fixes.choose((await look(call)).findings, [target])
    for mutation in await fixes.mutations(call, findings):
        await commit(call, mutation)


async def deploying(call: Call) -> str:
    """A service under a deployment, with its hook's pod."""
    body = await created(call, name="other", replicas=0)
    sha = (await RC.records(call.client, KEYS).get(body)).record.manifest
    web = Service(id=WEB, name="web", mode="replicated", deployment=DEPLOYMENT)
    await call.client.transaction(list(ServiceStore(call.client, KEYS).create(web)))
    await put(call, KEYS.record(DEPLOYMENTS, DEPLOYMENT), Deployment(id=DEPLOYMENT, name="d", goals=[]))
    await put(call, KEYS.name(DEPLOYMENTS, "d"), DEPLOYMENT)
    await register_node(call.client, KEYS, "n1")
    await put(call, KEYS.pod(WEB, "n1", HOOK), Pod(sha))
    await put(call, KEYS.intent("n1", HOOK), Intent(sha, WEB))
    return sha


async def test_the_pod_of_a_hook_is_its_services_while_the_deployment_exists_and_nobodys_after_it() -> None:
    async with person() as call:
        await deploying(call)
        assert await found(call, "orphan-pod", "orphan-intent", "intent-without-pod") == []
        assert "services with a deployment that is over" not in (await look(call)).facts
        await call.client.delete(KEYS.record(DEPLOYMENTS, DEPLOYMENT))
        assert await found(call, "orphan-pod") == [("orphan-pod", f"pods/{WEB}/n1/{HOOK}")]
        assert (await look(call)).facts["services with a deployment that is over"] == "web"
        await fix(call, "orphan-pod")
        assert await call.client.read(KEYS.intent("n1", HOOK)) is None
        assert await call.client.read(KEYS.pod(WEB, "n1", HOOK)) is None


@pytest.mark.parametrize("doubt", ["record", "sentinel"])
async def test_r20_a_hook_is_no_orphan_while_nobody_can_tell_whose_it_is(doubt: str) -> None:
    async with person() as call:
        await deploying(call)
        await call.client.delete(KEYS.record(DEPLOYMENTS, DEPLOYMENT))
        if doubt == "record":
            await call.client.put(KEYS.record(KIND, WEB), b"{")
        else:
            await call.client.delete(KEYS.sentinel(KEYS.tree(DEPLOYMENTS)))
        assert await found(call, "orphan-pod") == []


async def test_a_drain_says_whose_hook_it_waits_for() -> None:
    async with person() as call:
        await deploying(call)
        owner = await facts.find_owner(call.client, KEYS, WEB)
        assert (owner.title, owner.moves) == ("service/web", False)
        assert owner.stays == f"deployments/{DEPLOYMENT} runs it, and removes it once it has ended"


async def test_the_pod_of_a_hook_bears_its_services_name_and_is_not_restarted() -> None:
    async with person() as call:
        await deploying(call)
        (row,) = (await overview.pods(call.client, KEYS)).rows
        assert (row.instance, row.owner_name) == (HOOK, "service/web")
        with pytest.raises(Conflict, match="runs once for service/web, and is not restarted"):
            await restart(call, "n1", HOOK)


async def test_a_part_of_a_service_that_is_gone_is_left_to_people() -> None:
    async with person() as call:
        rc = await created(call)
        stored = await RC.records(call.client, KEYS).get(rc)
        part = msgspec.structs.replace(stored.record, part_of=f"{KIND}/{WEB}")
        await put(call, stored.key, part)
        assert await found(call, "part-of-nobody") == [("part-of-nobody", f"rcs/{rc}")]
        with pytest.raises(Conflict):
            await RC.disable(call, "hello")
        await fix(call, f"rcs/{rc}")
        assert (await RC.records(call.client, KEYS).get(rc)).record == stored.record
        await commit(call, await RC.disable(call, "hello"))


async def test_a_part_whose_service_came_back_is_left_to_it() -> None:
    async with person() as call:
        stored = await RC.records(call.client, KEYS).get(await created(call))
        part = msgspec.structs.replace(stored.record, part_of=f"{KIND}/{WEB}")
        await put(call, stored.key, part)
        (mutation,) = await fixes.mutations(
            call, fixes.choose((await look(call)).findings, ["part-of-nobody"])
        )
        await put(call, KEYS.record(KIND, WEB), Service(id=WEB, name="web", mode="replicated"))
        with pytest.raises(Conflict):
            await commit(call, mutation)


async def test_a_volume_of_a_service_that_is_gone_is_told_and_kept() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "n1")
        kept = {"mine": NodeVolume(), "shop_data": NodeVolume(driver="nfs", service=GONE)}
        await put(call, KEYS.node("n1"), Node(volumes=kept))
        for name in kept:
            await put(call, KEYS.name("volumes", name), "n1")
        assert await found(call, "volume-of-nobody", "stale-name") == [("volume-of-nobody", "nodes/n1")]
        await fix(call, "volume-of-nobody")
        assert await found(call, "volume-of-nobody") == []
        rows, _ = await volumes.rows(call)
        assert [(row.name, row.driver, row.service) for row in rows] == [
            ("mine", "local", ""),
            ("shop_data", "nfs", ""),
        ]


async def test_a_name_of_no_volume_keeps_nobody_from_making_one() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "n1")
        await put(call, KEYS.node("n1"), Node())
        await put(call, KEYS.name("volumes", "shop_data"), "n1")
        with pytest.raises(NotFound):
            await volumes.delete(call, "shop_data")
        assert await found(call, "stale-name") == [("stale-name", "names/volumes/shop_data")]
        await call.client.put(KEYS.node("n2"), b"{")
        assert await found(call, "stale-name") == []
        await call.client.delete(KEYS.node("n2"))
        await fix(call, "stale-name")
        await commit(call, await volumes.create(call, "shop_data", "n1", NodeVolume()))


# -- apps ------------------------------------------------------------------------------------------
async def test_what_belongs_to_an_app_that_is_gone_is_freed_and_stays() -> None:
    async with person() as call:
        ident = await created(call, replicas=0)
        records = RC.records(call.client, KEYS)
        stored = await records.get(ident)
        owned = type(stored.record)(
            **{name: getattr(stored.record, name) for name in stored.record.__struct_fields__}
            | {"part_of": "apps/shop", "open": ["labels"]}
        )
        await call.client.transaction([records.replace(stored, owned)])
        node = Node(labels={"rack": "r1", "zone": "a"}, parts={"labels.rack": "apps/shop"})
        await put(call, KEYS.node("n1"), node)
        await put(call, KEYS.record("apps", "shop"), App(revision=1))
        assert await found(call, *OF_APPS) == []
        await call.client.delete(KEYS.record("apps", "shop"))
        assert await found(call, *OF_APPS) == [
            ("part-of-nobody", f"rcs/{ident}"),
            ("part-of-nobody", "nodes/n1"),
        ]
        await fix(call, f"rcs/{ident}")
        await fix(call, "nodes/n1")
        freed = (await records.get(ident)).record
        assert (freed.part_of, freed.open) == ("", [])
        assert (await NodeStore(call.client, KEYS).get("n1")).record == Node(labels=node.labels)
        assert await found(call, *OF_APPS) == []


async def test_a_revision_of_an_app_that_is_gone_is_removed() -> None:
    async with person() as call:
        store = AppStore(call.client, KEYS)
        await call.client.transaction([store.record("shop", apps.tracker(1, ()))])
        assert await found(call, *OF_APPS) == [("stale-tracker", "trackers/shop/00000001")]
        await fix(call, "trackers/shop/00000001")
        assert list(await store.revisions("shop")) == []


async def test_an_app_whose_record_does_not_decode_is_restored_paused_from_its_revisions() -> None:
    async with person() as call:
        store = AppStore(call.client, KEYS)
        await call.client.transaction([store.record("shop", apps.tracker(number, ())) for number in (1, 2)])
        await call.client.put(KEYS.record("apps", "shop"), b"{}")
        await fix(call, "apps/shop")
        assert wanted(await standing(call, "shop")) == App(revision=2, paused=True)
