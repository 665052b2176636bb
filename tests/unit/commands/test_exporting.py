"""What people said comes out as files, and the files bring it back; nothing is lost on the way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from farmd import kinds
from farmd.commands import difference, exporting
from farmd.commands.bundled import Bundled, Written
from farmd.commands.exporting import Import
from farmd.commands.mutation import Call, commit
from farmd.deploy.noun import DEPLOYMENT
from farmd.nodes.commands import cordon
from farmd.replication.commands import RC
from store import codec, manifests
from store.errors import NotRegistered
from store.jobs import Run
from store.keys import Keys
from store.nodes import Agent
from store.services import Hook, ServiceStore
from tests.people import KEYS, hello, person

POD = {"id": "hello", "command": ["sleep", "9"], "env": {"A": "b"}}
DIGEST = "1" * 64
DOCUMENTS: Mapping[str, dict[str, Any]] = {
    "rc": hello(node_selector="zone=a", replicas=7, pod_env={"A": "b"}),
    "daemonset": {"name": "hello", "pod": POD, "rate": 3},
    "job": {"name": "hello", "types": [{"name": "main", "pod": POD, "replicas": 4}]},
    "service": {"name": "hello", "container": {"image": f"web@sha256:{DIGEST}"}, "replicas": 2},
    "node": {"name": "n1", "labels": {"rack": "r1"}, "taints": [{"key": "gpu"}], "capacity": {"disks": 2.0}},
}
RECORDS = sorted(DOCUMENTS.keys() - {"service"})
"""The nouns whose records stand at once."""


def part(noun: str) -> Bundled:
    return kinds.bundled()[noun]()


async def make(call: Call, noun: str, **fields: Any) -> None:
    await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
    await commit(call, await part(noun).create(call, part(noun).wish(DOCUMENTS[noun] | fields)))


async def read(call: Call, found: Written, *, overwrite: bool = False) -> Import:
    """What an import of written files does, with its changes made."""
    documents = {
        f"{path}/{each['name']}": (path, {k: v for k, v in each.items() if k not in ("apiVersion", "kind")})
        for path, files in found.files.items()
        for each in files
    }
    done = await exporting.prepared(call, documents, overwrite=overwrite)
    for mutation in done.mutations:
        await commit(call, mutation)
    return done


def test_every_noun_is_written_or_says_what_is_written_in_its_place() -> None:
    nouns = {each.noun for each in kinds.named() if each.noun}
    assert nouns == kinds.exported().keys() | kinds.unbundled().keys()


@pytest.mark.parametrize("noun", RECORDS)
async def test_what_is_written_makes_the_same_elsewhere(noun: str) -> None:
    async with person() as here:
        await make(here, noun)
        written = await exporting.written(here)
    assert list(written.files) == [noun]
    async with person() as there:
        done = await read(there, written)
        assert (len(done.mutations), done.refused) == (1, {})
        assert (await exporting.written(there)).files == written.files
        again = await read(there, written)
        assert (again.mutations, again.same) == ([], [f"{noun}/{DOCUMENTS[noun]['name']}"])


async def test_manifests_are_read_several_at_once_in_the_order_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under_way, most = 0, 0
    reading = manifests.read_body

    async def watched(*asked: Any) -> bytes:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        body = await reading(*asked)
        under_way -= 1
        return body

    async with person() as call:
        for number in range(20):
            await make(call, "rc", name=f"r{number:02}")
        monkeypatch.setattr(manifests, "read_body", watched)
        written = await exporting.written(call)
    assert [document["name"] for document in written.files["rc"]] == [f"r{n:02}" for n in range(20)]
    assert most == 16


async def test_a_released_service_is_written_as_its_file() -> None:
    async with person() as call:
        await call.client.put(
            KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1", features=["runtime.container"]))
        )
        await commit(call, await part("service").create(call, part("service").wish(DOCUMENTS["service"])))
        [deployment] = (await DEPLOYMENT.records(call.client, KEYS).list()).items
        [goal] = deployment.record.goals
        services = ServiceStore(call.client, KEYS)
        stored = await services.find("hello")
        released = structs.replace(stored.record, version=goal.wanted, revision=1, deployment="")
        await call.client.transaction([services.replace(stored, released)])
        await call.client.transaction(DEPLOYMENT.records(call.client, KEYS).delete(deployment))
        written = await exporting.written(call)
        [document] = written.files["service"]
        assert (document["name"], document["replicas"]) == ("hello", 2)
        assert document["container"]["image"] == f"web@sha256:{DIGEST}"
        assert (await read(call, written)).same == ["service/hello"]


async def test_what_differs_is_refused_with_both_values_unless_it_shall_be_overwritten() -> None:
    async with person() as call:
        await make(call, "rc", replicas=2)
        written = await exporting.written(call)
        await commit(call, await part("rc").update(call, part("rc").wish(DOCUMENTS["rc"])))
        refused = await read(call, written)
        assert (refused.mutations, refused.refused) == ([], {"rc/hello": "differs: replicas 7 -> 2"})
        await read(call, written, overwrite=True)
        assert (await exporting.written(call)).files == written.files


async def test_a_field_that_the_file_leaves_at_its_default_is_compared_too() -> None:
    async with person() as call:
        await make(call, "daemonset")
        written = await exporting.written(call)
        await commit(
            call,
            await part("daemonset").update(
                call, part("daemonset").wish(DOCUMENTS["daemonset"] | {"max_in_progress": 2})
            ),
        )
        assert "max_in_progress" in (await read(call, written)).refused["daemonset/hello"]


async def test_what_is_part_of_an_app_comes_with_the_app_alone() -> None:
    async with person() as call:
        await make(replace(call, part_of="apps/shop"), "rc")
        assert (await exporting.written(call)).files == {}


async def test_a_job_that_is_over_is_not_written_because_it_would_run_again() -> None:
    async with person() as call:
        await make(call, "job")
        job = (await part("job").find(call, "hello")).stored.record  # type: ignore[union-attr]
        await call.client.put(KEYS.record("runs", job.id), codec.encode(Run(outcome="succeeded")))
        written = await exporting.written(call)
        assert (written.files, written.left) == ({}, ["job/hello: is over: succeeded"])


async def test_a_cordon_is_written_as_the_command_that_sets_it() -> None:
    async with person() as call:
        await make(call, "node")
        await commit(call, await cordon(replace(call, reason="new disk"), "n1"))
        assert (await exporting.written(call)).commands == [
            ["farmctl", "node", "cordon", "n1", "--reason", "new disk"]
        ]


async def test_a_record_that_does_not_decode_is_named_and_the_others_are_written() -> None:
    async with person() as call:
        await make(call, "rc")
        await call.client.put(KEYS.record("rcs", "broken"), b"{")
        written = await exporting.written(call)
        assert len(written.files["rc"]) == 1
        assert "rcs/broken" in written.left[0]


async def test_a_record_whose_manifest_is_lost_is_named_and_the_others_are_written() -> None:
    async with person() as call:
        await make(call, "rc")
        await make(call, "node")
        [sha] = {each.record.manifest for each in (await RC.records(call.client, KEYS).list()).items}
        await call.client.delete(KEYS.manifest(sha))
        written = await exporting.written(call)
        assert list(written.files) == ["node"]
        assert written.left[0].startswith("rc/hello: ")


def test_the_difference_of_a_hook_names_its_variables_and_no_value() -> None:
    before, after = (Holder(hook=Hook(command=["x"], env={"PASSWORD": value})) for value in ("one", "two"))
    told = repr(difference.fields(before, after, {}))
    assert "PASSWORD" in told
    assert not {"one", "two"} & set(re.findall(r"\w+", told))


class Holder(msgspec.Struct, frozen=True):
    """A record with a hook."""

    hook: Hook


async def test_where_no_cluster_is_known_nothing_is_exported() -> None:
    """An empty answer proves nothing there (R20), and an export removes the files of what is gone."""
    async with person() as call:
        await make(call, "rc")
        with pytest.raises(NotRegistered):
            await exporting.written(replace(call, keys=Keys("elsewhere/")))


@pytest.mark.parametrize("family", ["rcs", "jobs"])
async def test_r20_where_a_tree_may_not_be_read_nothing_is_exported(family: str) -> None:
    async with person() as call:
        sentinel = KEYS.sentinel(KEYS.tree(family))
        await call.client.delete(sentinel)
        with pytest.raises(NotRegistered, match=f"^{sentinel}: missing, or this token may not read it"):
            await exporting.written(call)


async def test_a_record_that_does_not_decode_is_refused_and_the_rest_of_the_files_goes_on() -> None:
    async with person() as call:
        await make(call, "rc")
        stored = await RC.find(call, "hello")
        await call.client.put(stored.key, b'{"replicas": "of a later version"}')
        files = {"rc/hello": ("rc", DOCUMENTS["rc"]), "job/hello": ("job", DOCUMENTS["job"])}
        found = await exporting.prepared(call, files, overwrite=False)
    assert list(found.refused) == ["rc/hello"]
    assert [mutation.change.action for mutation in found.mutations] == ["job.create"]
