"""Each record that does not decode has a way out: restored from what is known, or removed, audited (R10)."""

from __future__ import annotations

import pytest

from farmd.commands.mutation import Call, commit
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.replication.commands import RC
from store import codec
from store.apps import App, Entry, TypedReference, tracker
from store.audit import AuditReader, Filter
from store.errors import Conflict
from store.families import FAMILIES
from store.nodes import Node, NodeVolume, Reserved
from store.pods import Pod
from store.rcs import ReplicationControllerStore
from store.reality import Intent
from tests.people import KEYS, hello, person, snapshot

GARBAGE = b"\xff<html>"


async def world(call: Call) -> tuple[str, str]:
    """A controller with one pod that asks for room; returns its id and its manifest's digest."""
    spec = RC.file.parse(hello(replicas=1, pod_labels={"app": "web"}, pod_resources={"cpu": 2.0}), "test")
    await commit(call, await RC.create(call, spec))
    rc = (await ReplicationControllerStore(call.client, KEYS).find("hello")).record
    await call.client.put(KEYS.pod(rc.id, "n1", "hello"), codec.encode(Pod(rc.manifest)))
    await call.client.put(KEYS.intent("n1", "hello"), codec.encode(Intent(rc.manifest, rc.id)))
    return rc.id, rc.manifest


async def fix(call: Call, key: str) -> None:
    """``doctor --fix KEY``."""
    report = await examine(call.client, KEYS, call.clock)
    (chosen,) = fixes.choose(
        [f for f in report.findings if f.code == "record-invalid"], [key.removeprefix("farmd/")]
    )
    assert f"farmctl doctor --fix {chosen.object}" in chosen.fix
    for mutation in await fixes.mutations(call, [chosen]):
        await commit(call, mutation)


async def value(call: Call, key: str) -> bytes | None:
    entry = await call.client.read(key)
    return None if entry is None else entry.value


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.record])
async def test_every_family_has_a_way_out_that_leaves_nothing_undecodable(family: str) -> None:
    async with person(reason="a slip") as call:
        rc, _ = await world(call)
        key = {
            "rcs": KEYS.record("rcs", rc),
            "daemonsets": KEYS.record("daemonsets", "0b"),
            "jobs": KEYS.record("jobs", "0b"),
            "runs": KEYS.record("runs", "0b"),
            "schedules": KEYS.record("schedules", "0b"),
            "jobtemplates": KEYS.record("jobtemplates", "0b"),
            "started": KEYS.record("started", "greet/one"),
            "rollouts": KEYS.record("rollouts", "0b"),
            "deployments": KEYS.record("deployments", "0b"),
            "services": KEYS.record("services", "0b"),
            "signatures": KEYS.signature("a" * 64, "0b", "rcs/hello"),
            "apps": KEYS.record("apps", "shop"),
            "trackers": KEYS.tracker("shop", 1),
            "history": KEYS.history("hello", "0b"),
            "pods": KEYS.pod(rc, "n1", "hello"),
            "intent": KEYS.intent("n1", "hello"),
            "reality": KEYS.reality("n1", "hello"),
            "nodes": KEYS.node("n1"),
            "agents": KEYS.agent("n1"),
            "reserved": KEYS.reserved("n1"),
            "farms": KEYS.farm("f1"),
            "failsafe": KEYS.failsafe("rcs"),
            "work": KEYS.work("rcs", rc),
            "names": KEYS.name("rcs", "hello"),
            "status": KEYS.status("rcs", rc),
        }[family]
        await call.client.put(key, GARBAGE)
        await fix(call, key)
        report = await examine(call.client, KEYS, call.clock)
        assert [finding.object for finding in report.findings if finding.code == "record-invalid"] == []
        (audit, *_) = await AuditReader(call.client, KEYS).read(Filter(), 1)
        assert (audit.action in {fixes.ACTION, fixes.RESTORE}, audit.reason) == (True, "a slip")


async def test_a_tracker_whose_entries_were_altered_is_found_and_removed() -> None:
    async with person(reason="a slip") as call:
        good = codec.encode(tracker(1, [Entry(ref=TypedReference(kind="rc", name="web"))]))
        await call.client.put(KEYS.record("apps", "shop"), codec.encode(App(revision=1)))
        await call.client.put(key := KEYS.tracker("shop", 1), good.replace(b'"digest":"', b'"digest":"0'))
        await fix(call, key)
        assert await value(call, key) is None


async def test_what_other_records_tell_is_restored_as_it_was() -> None:
    async with person() as call:
        rc, manifest = await world(call)
        before = await snapshot(call)
        for key in (KEYS.intent("n1", "hello"), KEYS.name("rcs", "hello")):
            await call.client.put(key, GARBAGE)
            await fix(call, key)
            assert await value(call, key) == before[key]
        pod = KEYS.pod(rc, "n1", "hello")
        await call.client.put(pod, GARBAGE)
        await fix(call, pod)
        made = codec.decode(Pod, await value(call, pod) or b"", pod)
        assert (made.manifest, made.labels["app"], made.labels["pod_id"]) == (manifest, "web", "hello")
        await call.client.put(KEYS.reserved("n1"), GARBAGE)
        await fix(call, KEYS.reserved("n1"))
        book = codec.decode(Reserved, await value(call, KEYS.reserved("n1")) or b"", "reserved")
        assert book.instances == {"hello": {"cpu": 2.0}}


async def test_r28_a_restored_intent_gives_its_owner_no_reason_to_restart_the_pod() -> None:
    async with person() as call:
        await world(call)
        await commit(call, await RC.restart(call, "hello"))
        key = KEYS.intent("n1", "hello")
        await call.client.put(key, GARBAGE)
        await fix(call, key)
        assert codec.decode(Intent, await value(call, key) or b"", key).restart == 1


async def test_a_nodes_record_comes_back_cordoned_because_nobody_knows_whether_it_was() -> None:
    async with person() as call:
        await call.client.put(KEYS.node("n1"), GARBAGE)
        await fix(call, KEYS.node("n1"))
        assert codec.decode(Node, await value(call, KEYS.node("n1")) or b"", "n1").cordoned


async def test_a_nodes_record_comes_back_with_the_volumes_that_others_know_of() -> None:
    """By a volume's name, and by what pods of the node mount: else they were made anew, empty, elsewhere."""
    async with person() as call:
        container = {"image": "postgres:16"}
        mount = {"type": "volume", "source": "data", "target": "/data"}
        how = {"data": {"driver": "nfs", "options": {"o": "addr=m9"}}}
        pod = {
            "id": "hello",
            "runtime": "container",
            "container": container,
            "mounts": [mount],
            "volumes": how,
        }
        made = await RC.create(call, RC.file.parse({"name": "hello", "replicas": 1, "pod": pod}, "test"))
        await commit(call, made)
        sha = made.change.manifest
        await call.client.put(KEYS.pod(made.change.id, "n1", "hello"), codec.encode(Pod(sha)))
        for name, node in (("mine", "n1"), ("other", "n2")):
            await call.client.put(KEYS.name("volumes", name), codec.encode(node))
        await call.client.put(KEYS.node("n1"), GARBAGE)
        await fix(call, KEYS.node("n1"))
        node = codec.decode(Node, await value(call, KEYS.node("n1")) or b"", "n1")
        driven = NodeVolume(driver="nfs", options={"o": "addr=m9"})
        assert node.volumes == {"mine": NodeVolume(), "data": driven}


async def test_the_name_of_a_volume_comes_back_from_a_node_that_has_it() -> None:
    async with person() as call:
        await call.client.put(KEYS.node("n1"), codec.encode(Node(volumes={"data": NodeVolume()})))
        for name in ("data", "gone"):
            await call.client.put(KEYS.name("volumes", name), GARBAGE)
            await fix(call, KEYS.name("volumes", name))
        assert await value(call, KEYS.name("volumes", "data")) == b'"n1"'
        assert await value(call, KEYS.name("volumes", "gone")) is None


async def test_a_controllers_record_goes_with_its_name_and_its_pods_stay() -> None:
    async with person() as call:
        rc, _ = await world(call)
        await call.client.put(KEYS.record("rcs", rc), GARBAGE)
        await fix(call, KEYS.record("rcs", rc))
        assert await value(call, KEYS.name("rcs", "hello")) is None
        assert await value(call, KEYS.pod(rc, "n1", "hello")) is not None
        codes = {finding.code for finding in (await examine(call.client, KEYS, call.clock)).findings}
        assert "orphan-pod" in codes


async def test_what_was_corrected_meanwhile_is_not_written_over() -> None:
    async with person() as call:
        await world(call)
        key = KEYS.intent("n1", "hello")
        good = await value(call, key)
        assert good is not None
        await call.client.put(key, GARBAGE)
        report = await examine(call.client, KEYS, call.clock)
        mutations = await fixes.mutations(call, fixes.choose(report.findings, ["intent/n1/hello"]))
        await call.client.put(key, good)
        with pytest.raises(Conflict):
            await commit(call, mutations[0])
