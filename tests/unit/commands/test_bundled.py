"""Records in bundles: a bundle speaks of what its document states, and marks what is its own (R14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from farmd import kinds
from farmd.commands.bundled import Bundled, FoundRecord
from farmd.commands.mutation import Call, commit
from farmd.commands.waiting import Spells
from farmd.deploy.commands import Deployment
from farmd.deploy.manifest import compiled
from farmd.deploy.project import ResolvedServices
from farmd.replication.commands import RC, set_replicas
from store import codec, manifests
from store.audit import AuditReader, Filter
from store.entry import Stored
from store.errors import Conflict
from store.jobs import Run
from store.nodes import Agent, Node, NodeStore
from store.services import Service
from tests.people import KEYS, hello, person, place

APP = "apps/shop"
POD = {"id": "hello", "command": ["sleep", "9"]}
DIGEST = "1" * 64
DOCUMENTS: Mapping[str, dict[str, Any]] = {
    "rc": hello(),
    "daemonset": {"name": "hello", "pod": POD, "rate": 3},
    "job": {"name": "hello", "types": [{"name": "main", "pod": POD}]},
    "schedule": {
        "name": "hello",
        "every": 60,
        "job": {"types": [{"name": "main", "pod": POD}]},
    },
    "job-template": {
        "name": "hello",
        "parameters": {"text": {}},
        "job": {"types": [{"name": "main", "pod": {**POD, "env": {"TEXT": "${param.text}"}}}]},
    },
    "service": {"name": "hello", "container": {"image": f"web@sha256:{DIGEST}"}, "replicas": 2},
    "node": {"name": "n1", "labels": {"rack": "r1"}},
}
OTHERWISE: Mapping[str, dict[str, Any]] = {
    "rc": {"replicas": 5},
    "daemonset": {"rate": 4},
    "job": {"backoff_limit": 1},
    "schedule": {"overlap": "allow"},
    "job-template": {"description": "Says hello."},
    "service": {"replicas": 3},
    "node": {"labels": {"rack": "r2"}},
}
NOUNS = sorted(DOCUMENTS)


def bundled(noun: str) -> Bundled:
    return kinds.bundled()[noun]()


def acting(call: Call) -> Call:
    return replace(call, part_of=APP, open=("disabled",))


async def machine(call: Call) -> None:
    agent = Agent(node="n1", version="1", features=["runtime.container"])
    await call.client.put(KEYS.agent("n1"), codec.encode(agent))


async def made(call: Call, noun: str) -> FoundRecord:
    await machine(call)
    part = bundled(noun)
    await commit(call, await part.create(acting(call), part.wish(DOCUMENTS[noun])))
    return await found(call, noun)


async def found(call: Call, noun: str) -> FoundRecord:
    there = await bundled(noun).find(acting(call), DOCUMENTS[noun]["name"])
    assert there is not None
    return there


def test_every_noun_that_bundles_may_hold_has_a_document_here() -> None:
    assert set(NOUNS) == kinds.bundled().keys()
    assert all(bundled(noun).noun == noun for noun in NOUNS)


@pytest.mark.parametrize("noun", NOUNS)
async def test_what_is_made_bears_the_mark_of_its_app_in_its_own_write(noun: str) -> None:
    async with person() as call:
        assert await bundled(noun).find(acting(call), DOCUMENTS[noun]["name"]) is None
        there = await made(call, noun)
        assert there.part_of == APP


@pytest.mark.parametrize("noun", ["daemonset", "job", "node", "rc"])
async def test_what_is_as_its_document_says_differs_in_nothing_and_else_in_the_stated_field(
    noun: str,
) -> None:
    async with person() as call:
        there, part, me = await made(call, noun), bundled(noun), acting(call)
        assert await part.differs(me, there, part.wish(DOCUMENTS[noun])) == ({}, {})
        other = part.wish(DOCUMENTS[noun] | OTHERWISE[noun])
        before, after = await part.differs(me, there, other)
        assert before.keys() == after.keys()
        assert len(after) == 1
        await commit(me, await part.update(me, other))
        assert await part.differs(me, await found(call, noun), other) == ({}, {})


async def test_a_service_of_an_earlier_farmd_does_not_differ_in_what_its_hook_runs() -> None:
    async with person() as call:
        part, document = bundled("service"), DOCUMENTS["service"] | {"pre_deploy": {"command": ["migrate"]}}
        wish = part.wish(document)
        manifest, version = compiled(wish.spec)
        assert version.hook_manifest
        await call.client.put(KEYS.manifest(version.manifest), manifests.canonical(manifest))
        before = structs.replace(version, hook_manifest="")
        record = Service(id="5e", name="hello", mode="replicated", version=before, part_of=APP)
        there = part.seen(acting(call), Stored(KEYS.record("services", "5e"), record, 7, b""))
        assert await part.differs(acting(call), there, wish) == ({}, {})


@pytest.mark.parametrize("noun", ["daemonset", "job", "rc"])
async def test_a_field_that_is_ignored_counts_for_the_creation_alone(noun: str) -> None:
    async with person() as call:
        there, part = await made(call, noun), bundled(noun)
        wish = part.wish(DOCUMENTS[noun] | OTHERWISE[noun], ignore=list(OTHERWISE[noun]))
        assert await part.differs(acting(call), there, wish) == ({}, {})


async def test_a_field_that_the_document_leaves_out_stays_as_people_set_it() -> None:
    async with person() as call:
        await made(call, "rc")
        part, me = bundled("rc"), acting(call)
        document = {key: value for key, value in hello(labels={"team": "web"}).items() if key != "replicas"}
        stored = await RC.find(call, "hello")
        records = RC.records(call.client, KEYS)
        changed = codec.decode(type(stored.record), codec.encode(stored.record), "x")
        await call.client.transaction(
            [
                records.replace(
                    stored, type(changed)(**_fields(changed) | {"replicas_desired": 9, "strategy": "dynamic"})
                )
            ]
        )
        await commit(me, await part.update(me, part.wish(document)))
        record = (await RC.find(call, "hello")).record
        assert (record.replicas_desired, record.strategy, record.labels) == (9, "dynamic", {"team": "web"})


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


async def test_r14_people_do_not_edit_what_belongs_to_an_app_and_the_app_does() -> None:
    async with person() as call:
        await made(call, "rc")
        with pytest.raises(Conflict, match="replicas of rc/hello is managed by app shop"):
            await set_replicas(call, "hello", 9)
        await commit(call, await set_replicas(acting(call), "hello", 9))


@pytest.mark.parametrize("noun", ["daemonset", "job", "rc", "node"])
async def test_a_mark_changes_whose_an_object_is_and_nothing_else(noun: str) -> None:
    async with person() as call:
        await made(call, noun)
        part, name = bundled(noun), DOCUMENTS[noun]["name"]
        me, other = acting(call), replace(call, part_of="apps/other", open=("disabled",))
        before = _without_mark(await found(call, noun))
        await commit(me, await part.mark(me, name, "apps/other"))
        handed = await part.find(other, name)
        assert handed is not None
        assert handed.part_of == "apps/other"
        await commit(call, await part.mark(other, name, ""))
        assert (freed := await part.find(other, name)) is not None
        assert not freed.part_of
        assert _without_mark(freed) == before
        (last,) = await AuditReader(call.client, KEYS).read(Filter(), 1)
        assert last.action == f"{noun}.release"


def _without_mark(there: FoundRecord) -> dict[str, Any]:
    fields = _fields(there.stored.record)
    return {name: value for name, value in fields.items() if name not in {"part_of", "parts"}}


async def test_what_is_being_rolled_deleted_or_locked_is_busy() -> None:
    async with person() as call:
        await made(call, "rc")
        part, me = bundled("rc"), acting(call)
        assert not (await found(call, "rc")).busy
        await commit(me, await part.update(me, part.wish(hello(pod_args=["--v2"]))))
        rolled = await found(call, "rc")
        assert rolled.busy == "managed by rollout/hello"
        assert rolled.part_of == APP
        (second,) = [
            each.record
            for each in (await RC.records(call.client, KEYS).list()).items
            if each.record.name != "hello"
        ]
        assert not second.part_of


async def test_a_deletion_of_an_owner_of_pods_marks_it_for_its_worker() -> None:
    async with person() as call:
        there, me = await made(call, "rc"), acting(call)
        await place(call, there.stored.record.id, "n1")
        await commit(me, await bundled("rc").delete(me, "hello"))
        assert (await found(call, "rc")).busy == "is being deleted"


async def test_a_node_keeps_what_others_say_of_it_and_loses_what_the_app_said() -> None:
    async with person() as call:
        await call.client.put(KEYS.node("n1"), codec.encode(Node(labels={"zone": "a"})))
        await made(call, "node")
        part, me = bundled("node"), acting(call)
        document = {"name": "n1", "labels": {"row": "7"}, "taints": [{"key": "gpu"}]}
        await commit(me, await part.update(me, part.wish(document)))
        node = (await NodeStore(call.client, KEYS).get("n1")).record
        assert node.labels == {"zone": "a", "row": "7"}
        assert node.parts == {"labels.row": APP, "taints.gpu:no-schedule": APP}
        other = replace(call, part_of="apps/other")
        with pytest.raises(Conflict, match=r"node/n1: labels\.row belongs to apps/shop"):
            await part.update(other, part.wish({"name": "n1", "labels": {"row": "8"}}))
        await commit(me, await part.delete(me, "n1"))
        assert (await NodeStore(call.client, KEYS).get("n1")).record == Node(labels={"zone": "a"})


async def test_a_field_of_a_node_that_one_app_says_is_not_adopted_by_another_that_says_the_same() -> None:
    async with person() as call:
        part, me, other = bundled("node"), acting(call), replace(call, part_of="apps/other")
        wish = part.wish({"name": "n1", "labels": {"row": "7"}})
        await commit(me, await part.create(me, wish))
        with pytest.raises(Conflict, match=r"node/n1: labels\.row belongs to apps/shop"):
            await part.mark(other, "n1", "apps/other", wish)


async def test_a_node_that_nobody_knows_is_registered_with_what_is_said_of_it() -> None:
    async with person() as call:
        part, me = bundled("node"), acting(call)
        await commit(me, await part.create(me, part.wish(DOCUMENTS["node"])))
        assert (await NodeStore(call.client, KEYS).get("n1")).record.labels == {"rack": "r1"}
        assert await call.client.read(KEYS.sentinel(KEYS.intents("n1"))) is not None


@pytest.mark.parametrize(
    ("outcome", "state"), [("", "progressing"), ("succeeded", "ready"), ("failed", "failed")]
)
async def test_a_job_is_ready_once_all_its_slots_ended_well(outcome: Any, state: str) -> None:
    async with person() as call:
        there = await made(call, "job")
        job = there.stored.record.id
        await call.client.put(KEYS.record("runs", job), codec.encode(Run(job=job, outcome=outcome)))
        assert (await bundled("job").verdict(call, there, Spells(call.clock))).state == state


async def test_a_service_is_busy_while_its_deployment_lasts() -> None:
    async with person() as call:
        there = await made(call, "service")
        assert there.busy.startswith("changed by deployment/")
        assert (await bundled("service").verdict(call, there, Spells(call.clock))).state == "progressing"


async def test_r14_people_deploy_no_service_that_belongs_to_an_app_save_fields_that_its_file_leaves_out() -> (
    None
):
    async with person() as call:
        await made(call, "service")
        spec = bundled("service").wish(DOCUMENTS["service"]).spec
        wanted = ResolvedServices(services={"hello": spec})
        with pytest.raises(Conflict, match="service/hello is part of app/shop"):
            await Deployment(call=call, wanted=wanted).plan()
        with pytest.raises(Conflict, match="replicas of service/hello is managed by app shop"):
            await Deployment(call=call, wanted=wanted, fields={"replicas"}).plan()
        await Deployment(call=call, wanted=wanted, fields={"disabled"}).plan()
        await Deployment(call=acting(call), wanted=wanted).plan()
