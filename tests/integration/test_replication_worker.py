"""A replication controller's worker on a real Consul: p2's table (``pkg/rc``), then what is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from store import codec, manifests, operations
from store.audit import Audit
from store.labels import RC_ID_LABEL
from store.manifests import Manifest, Port
from store.nodes import Node
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Health, Intent, Reality
from store.status import Status
from tests.fleet import HELLO, Cluster, RunningFarm, cluster_on, eventually, start_farm

GOOD, BAD = {"nodeQuality": "good"}, {"nodeQuality": "bad"}
SELECTOR = "nodeQuality=good"


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        yield made


@pytest.fixture
async def farm(cluster: Cluster) -> AsyncIterator[RunningFarm]:
    running = await start_farm(cluster.client, "farm-1", keys=cluster.keys)
    yield running
    await running.close()


async def create(
    cluster: Cluster, replicas: int, name: str = "hello", **fields: Any
) -> ReplicationController:
    return await cluster.create_rc(name, replicas, **({"node_selector": SELECTOR} | fields))


async def placed(cluster: Cluster, rc: ReplicationController, count: int) -> list[str]:
    """The nodes of its pods, once there are so many."""

    async def enough() -> bool:
        return len(await cluster.pods(rc.id)) == count

    await eventually(enough, what=f"{count} pods")
    return [node for node, _ in await cluster.pods(rc.id)]


async def said(cluster: Cluster, rc: ReplicationController, state: str, text: str = "") -> Status:
    """Its status, once it is so."""

    async def says() -> Status | None:
        status = await cluster.status(rc)
        return status if status.state == state and text in status.reason else None

    return await eventually(says, what=f"status {state} {text!r}")  # type: ignore[no-any-return]


async def pod_audits(cluster: Cluster) -> list[Audit]:
    return [audit for audit in await cluster.audits() if audit.action.startswith("pods.")]


async def consistent(cluster: Cluster, rc: ReplicationController) -> None:
    """Pods and intents agree, and the audit adds up to what stands."""
    pods = await cluster.pods(rc.id)
    mine = {place for place, intent in (await cluster.intents()).items() if intent.owner == rc.id}
    assert mine == set(pods)
    audited: set[str] = set()
    for audit in await pod_audits(cluster):
        if audit.id == rc.id:
            assert not audited & set(audit.placed)
            assert audited >= set(audit.removed)
            audited = (audited | set(audit.placed)) - set(audit.removed)
    assert audited == {f"{node}/{instance}" for node, instance in pods}


# -- p2's table --------------------------------------------------------------------------------
async def test_schedule(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": BAD, "node2": GOOD})
    rc = await create(cluster, 1, pod_labels={"tier": "web"})
    assert await placed(cluster, rc, 1) == ["node2"]
    assert list(await cluster.intents()) == [("node2", "hello")]
    (audit,) = await pod_audits(cluster)
    assert (audit.action, audit.placed, audit.removed) == ("pods.place", ["node2/hello"], [])
    assert (audit.before, audit.after, audit.actor) == ({"pods": 0}, {"pods": 1}, "farm/farm-1")
    assert farm.alerts.fired == []
    entry = await cluster.client.read(cluster.keys.pod(rc.id, "node2", "hello"))
    assert entry is not None
    pod = codec.decode(Pod, entry.value, entry.key)
    assert pod.labels == {"tier": "web", "pod_id": "hello", RC_ID_LABEL: rc.id}
    await consistent(cluster, rc)


async def test_do_nothing(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": GOOD})
    rc = await create(cluster, 0)
    await said(cluster, rc, "converged")
    assert await cluster.pods(rc.id) == []
    assert await cluster.intents() == {}
    assert await pod_audits(cluster) == []
    assert farm.alerts.fired == []


async def test_cant_schedule_is_one_alert_and_a_reason_and_w22_no_audit(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": BAD})
    rc = await create(cluster, 1)
    status = await said(cluster, rc, "blocked", "node selector")
    assert (status.desired, status.placed) == (1, 0)
    written = await cluster.client.read(cluster.keys.status("rcs", rc.id))
    # Every change of a node makes it look again: it finds the same, and tells nobody.
    for number in range(5):
        await cluster.put(cluster.keys.node("node1"), Node(labels={**BAD, "n": str(number)}))

    async def looked_again() -> bool:
        return farm.metric("farmd_cycles_total", kind="rcs", result="blocked") >= 3

    await eventually(looked_again)
    assert [(alert.urgency, alert.incident_key) for alert in farm.alerts.fired] == [("low", rc.id)]
    assert await pod_audits(cluster) == []
    assert await cluster.client.read(cluster.keys.status("rcs", rc.id)) == written
    assert await cluster.pods(rc.id) == []


async def test_schedule_partial_keeps_what_could_be_placed_and_ends_the_incident(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": BAD, "node2": GOOD})
    rc = await create(cluster, 2)
    await said(cluster, rc, "blocked", "1 of 1 pod found no place")
    assert await placed(cluster, rc, 1) == ["node2"]
    assert list(farm.alerts.firing) == [rc.id]
    await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD))
    await placed(cluster, rc, 2)

    async def over() -> bool:
        return farm.alerts.firing == {}

    await eventually(over)
    await consistent(cluster, rc)


async def test_schedule_twice_then_unschedule(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    rc = await create(cluster, 1)
    await placed(cluster, rc, 1)
    rc = await cluster.change_rc(rc, replicas_desired=2)
    assert await placed(cluster, rc, 2) == ["node1", "node2"]
    rc = await cluster.change_rc(rc, replicas_desired=0)
    await placed(cluster, rc, 0)
    assert await cluster.intents() == {}
    last = (await pod_audits(cluster))[-1]
    assert (sorted(last.removed), last.after) == (["node1/hello", "node2/hello"], {"pods": 0})
    await consistent(cluster, rc)


async def test_w8_many_pods_come_in_full_transactions_and_go_again(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({f"node{n:03}": GOOD for n in range(100)})
    rc = await create(cluster, 100)
    await placed(cluster, rc, 100)
    told = await pod_audits(cluster)
    assert len(told) == 4, "30 pods of two operations each, a fence of three, one audit"
    assert sum(len(audit.placed) for audit in told) == len({place for a in told for place in a.placed}) == 100
    assert sorted(audit.after["pods"] for audit in told) == [30, 60, 90, 100]
    await consistent(cluster, rc)
    rc = await cluster.change_rc(rc, replicas_desired=0)
    await placed(cluster, rc, 0)
    await consistent(cluster, rc)


async def test_prefer_unschedule_ineligible(cluster: Cluster, farm: RunningFarm) -> None:
    names = [f"node{number}" for number in range(20)]
    await cluster.add_nodes(dict.fromkeys(names, GOOD))
    rc = await create(cluster, 20)
    await placed(cluster, rc, 20)
    await cluster.put(cluster.keys.node("node13"), Node(labels=BAD))
    rc = await cluster.change_rc(rc, replicas_desired=19)
    assert set(names) - set(await placed(cluster, rc, 19)) == {"node13"}
    assert farm.alerts.fired == []
    await consistent(cluster, rc)


async def test_rc_does_not_fix_membership(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": BAD})
    rc = await create(cluster, 1)
    await placed(cluster, rc, 1)
    await cluster.put(cluster.keys.node("node1"), Node(labels=BAD))
    await cluster.put(cluster.keys.node("node2"), Node(labels=GOOD))
    other = await create(cluster, 1, "other", manifest=Manifest(id="other", command=["x"]))
    assert await placed(cluster, other, 1) == ["node2"], "the change was seen"
    assert [node for node, _ in await cluster.pods(rc.id)] == ["node1"]


async def test_add_pods_and_remove_pods_disabled(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(5)})
    rc = await create(cluster, 3, disabled=True)
    await said(cluster, rc, "disabled")
    assert await cluster.pods(rc.id) == []
    rc = await cluster.change_rc(rc, disabled=False)
    await placed(cluster, rc, 3)
    rc = await cluster.change_rc(rc, disabled=True, replicas_desired=0)
    await said(cluster, rc, "disabled")
    await cluster.client.delete(cluster.keys.intent((await cluster.pods(rc.id))[0][0], "hello"))
    rc = await cluster.change_rc(rc, replicas_desired=5)
    marker = await create(cluster, 1, "marker", manifest=Manifest(id="marker", command=["x"]))
    await placed(cluster, marker, 1)
    assert len(await cluster.pods(rc.id)) == 3
    assert len([i for i in (await cluster.intents()).values() if i.owner == rc.id]) == 2, "nor repaired"


@pytest.mark.parametrize("altered", [True, False])
async def test_consistency_modify_and_delete(cluster: Cluster, farm: RunningFarm, altered: bool) -> None:
    await cluster.add_nodes({"node1": GOOD})
    rc = await create(cluster, 1)
    await placed(cluster, rc, 1)
    await said(cluster, rc, "progressing")
    key = cluster.keys.intent("node1", "hello")
    right = await cluster.client.read(key)
    assert right is not None
    if altered:
        await cluster.put(key, Intent(manifest="0" * 64, owner=rc.id))
    else:
        await cluster.client.delete(key)

    async def restored() -> bool:
        entry = await cluster.client.read(key)
        return entry is not None and entry.value == right.value and entry.modify_index > right.modify_index

    await eventually(restored)
    last = (await pod_audits(cluster))[-1]
    assert (last.action, last.relabelled) == ("pods.repair", ["node1/hello"])
    assert len(await cluster.pods(rc.id)) == 1


async def test_consistency_no_change(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": GOOD})
    rc = await create(cluster, 1)
    await placed(cluster, rc, 1)
    entry = await cluster.client.read(cluster.keys.intent("node1", "hello"))
    await cluster.put(cluster.keys.node("node1"), Node(labels={**GOOD, "x": "y"}))
    rc = await cluster.change_rc(rc, labels={"touched": "yes"})
    await said(cluster, rc, "progressing")
    assert await cluster.client.read(cluster.keys.intent("node1", "hello")) == entry


# -- ours --------------------------------------------------------------------------------------
async def test_w10_a_foreign_intent_makes_a_node_ineligible_with_that_reason(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    foreign = Intent(manifest="0" * 64, owner="somebody")
    await cluster.put(cluster.keys.intent("node1", "hello"), foreign)
    rc = await create(cluster, 2)
    status = await said(cluster, rc, "blocked", "belongs to another owner, somebody")
    assert status.placed == 1
    assert [node for node, _ in await cluster.pods(rc.id)] == ["node2"]
    assert (await cluster.intents())["node1", "hello"] == foreign
    await cluster.client.delete(cluster.keys.intent("node1", "hello"))
    await placed(cluster, rc, 2)
    await consistent(cluster, rc)


async def test_w6_an_intent_that_does_not_decode_is_nobodys_and_is_left_alone(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    rc = await create(cluster, 1)
    (node,) = await placed(cluster, rc, 1)
    key = cluster.keys.intent(node, "hello")
    await cluster.client.put(key, b"{")
    await said(cluster, rc, "blocked", "does not decode")
    rc = await cluster.change_rc(rc, replicas_desired=2)
    await placed(cluster, rc, 2)
    entry = await cluster.client.read(key)
    assert entry is not None
    assert entry.value == b"{"
    await cluster.client.delete(key)

    async def repaired() -> bool:
        return set(await cluster.intents()) == {("node1", "hello"), ("node2", "hello")}

    await eventually(repaired)


async def test_w6_a_pod_that_does_not_decode_stops_its_own_controller_alone(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(4)})
    rc = await create(cluster, 2)
    nodes = await placed(cluster, rc, 2)
    key = cluster.keys.pod(rc.id, nodes[0], "hello")
    await cluster.client.put(key, b"{")
    await said(cluster, rc, "blocked", key)
    rc = await cluster.change_rc(rc, replicas_desired=4)
    other = await create(cluster, 4, "other", manifest=Manifest(id="other", command=["x"]))
    await placed(cluster, other, 4)
    assert len(await cluster.pods(rc.id)) == 2, "leaving it out would pass for its absence"
    assert len([i for i in (await cluster.intents()).values() if i.owner == rc.id]) == 2


async def test_w6_a_record_that_does_not_decode_is_blocked_and_touches_no_other(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(3)})
    rc = await create(cluster, 2)
    await placed(cluster, rc, 2)
    key = cluster.keys.record("rcs", rc.id)
    right = await cluster.client.read(key)
    assert right is not None
    await cluster.client.put(key, b'{"id":"x","name":"hello","manifest":"m"}')
    await said(cluster, rc, "blocked", "replicas_desired")
    other = await create(cluster, 3, "other", manifest=Manifest(id="other", command=["x"]))
    await placed(cluster, other, 3)
    assert len(await cluster.pods(rc.id)) == 2, "a slip of a schema never scales a fleet to nothing"
    assert rc.id in farm.owned
    assert farm.farm.publish() is None
    assert farm.metric("farmd_invalid_records", family="rcs") == 1
    assert farm.metric("farmd_blocked", kind="rcs") == 1
    await cluster.client.put(key, right.value)
    await said(cluster, rc, "progressing")


async def test_a_missing_manifest_is_a_reason(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": GOOD})
    rc = await create(cluster, 0)
    await said(cluster, rc, "converged")
    rc = await cluster.change_rc(rc, manifest="0" * 64, replicas_desired=1)
    await said(cluster, rc, "blocked", "not_found")
    rc = await cluster.change_rc(rc, manifest=manifests.digest(manifests.canonical(HELLO)))
    await placed(cluster, rc, 1)


async def test_a_selector_that_does_not_parse_is_a_reason(cluster: Cluster, farm: RunningFarm) -> None:
    rc = await create(cluster, 1, node_selector="a in (")
    await said(cluster, rc, "blocked", "input_invalid")


async def test_removal_takes_the_unhealthy_first_then_the_newest(cluster: Cluster, farm: RunningFarm) -> None:
    names = [f"node{n}" for n in range(4)]
    await cluster.add_nodes(dict.fromkeys(names, GOOD))
    rc = await create(cluster, 3)
    first = await placed(cluster, rc, 3)
    rc = await cluster.change_rc(rc, replicas_desired=4)
    await placed(cluster, rc, 4)
    newest = (set(names) - set(first)).pop()
    intents = await cluster.entries(cluster.keys.tree("intent"))
    for node in names:
        health = Health("critical" if node == first[1] else "passing")
        acted = intents[cluster.keys.intent(node, "hello")].modify_index
        reality = Reality(manifest=rc.manifest, owner=rc.id, started=1.0, intent=acted, health=health)
        await cluster.put(cluster.keys.reality(node, "hello"), reality)

    async def seen() -> bool:
        return (await cluster.status(rc)).healthy == 3

    await eventually(seen)
    rc = await cluster.change_rc(rc, replicas_desired=3)
    assert first[1] not in await placed(cluster, rc, 3)
    rc = await cluster.change_rc(rc, replicas_desired=2)
    assert newest not in await placed(cluster, rc, 2)


async def test_replacement_in_place_takes_one_at_a_time(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(4)})
    stop = asyncio.Event()
    obeying = asyncio.create_task(cluster.obey(stop))
    try:
        rc = await create(cluster, 4)
        await said(cluster, rc, "converged")
        newer = msgspec.structs.replace(HELLO, command=["sleep", "2000"])
        body = manifests.canonical(newer)
        sha = manifests.digest(body)
        await cluster.client.transaction([operations.put(cluster.keys.manifest(sha), body)])
        rc = await cluster.change_rc(rc, manifest=sha)

        async def replaced() -> bool:
            return {intent.manifest for intent in (await cluster.intents()).values()} == {sha}

        await eventually(replaced)
        status = await said(cluster, rc, "converged")
        assert (status.placed, status.healthy, status.outdated) == (4, 4, 0)
    finally:
        stop.set()
        await obeying
    steps = [audit for audit in await pod_audits(cluster) if audit.action == "pods.replace"]
    assert [len(audit.relabelled) for audit in steps] == [1, 1, 1, 1]
    await consistent(cluster, rc)


async def test_r14_a_controller_that_is_taken_is_left_alone_and_one_that_is_lent_heals(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(3)})
    rc = await create(cluster, 1)
    (node,) = await placed(cluster, rc, 1)
    rc = await cluster.change_rc(rc, managed_by="rollouts/1", taken=True, hands=1, replicas_desired=3)
    await cluster.client.delete(cluster.keys.intent(node, "hello"))
    marker = await create(cluster, 1, "marker", manifest=Manifest(id="marker", command=["x"]))
    await placed(cluster, marker, 1)
    assert [n for n, _ in await cluster.pods(rc.id)] == [node]
    assert (node, "hello") not in await cluster.intents()
    rc = await cluster.change_rc(rc, taken=False, hands=2, replicas_desired=2)
    await placed(cluster, rc, 2)

    async def repaired() -> bool:
        return (node, "hello") in await cluster.intents()

    await eventually(repaired)


async def test_w11_deleting_the_record_touches_no_pod_and_frees_the_lock(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": GOOD})
    rc = await create(cluster, 1)
    await placed(cluster, rc, 1)
    await cluster.client.delete(cluster.keys.record("rcs", rc.id))

    async def freed() -> bool:
        return await cluster.locks() == {}

    await eventually(freed)
    assert list(await cluster.intents()) == [("node1", "hello")]
    assert farm.owned == set()


async def test_the_alert_of_a_deleted_controller_is_resolved(cluster: Cluster, farm: RunningFarm) -> None:
    rc = await create(cluster, 1)
    await said(cluster, rc, "blocked", "there are no nodes")
    assert list(farm.alerts.firing) == [rc.id]
    await cluster.client.delete(cluster.keys.record("rcs", rc.id))

    async def over() -> bool:
        return farm.alerts.firing == {}

    await eventually(over)


async def test_r25_a_status_is_written_for_another_record_or_in_other_words_only(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": GOOD})
    rc = await create(cluster, 0)
    before = await said(cluster, rc, "converged")
    rc = await cluster.change_rc(rc, labels={"n": "1"})
    key = cluster.keys.record("rcs", rc.id)

    async def renamed() -> bool:
        entry = await cluster.client.read(key)
        return entry is not None and (await cluster.status(rc)).record == entry.modify_index

    await eventually(renamed)
    assert (
        msgspec.structs.replace(await cluster.status(rc), record=before.record, since=before.since) == before
    )
    written = await cluster.client.read(cluster.keys.status("rcs", rc.id))
    cycles = farm.metric("farmd_cycles_total", kind="rcs", result="done")
    await cluster.client.put(cluster.keys.work("rcs", rc.id), b"{}")  # wakes the worker, and changes nothing

    async def looked() -> bool:
        return farm.metric("farmd_cycles_total", kind="rcs", result="done") > cycles

    await eventually(looked)
    assert await cluster.client.read(cluster.keys.status("rcs", rc.id)) == written


async def test_w23_the_very_first_pod_of_a_cluster_can_be_placed(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({"node1": {}})
    rc = await create(cluster, 1, node_selector="")
    await placed(cluster, rc, 1)


async def test_r17_a_fixed_port_is_given_to_one_controller_and_the_other_names_its_holder(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"n1": GOOD})
    web, api = (Manifest(id=name, command=["serve"], ports={"http": Port(8077)}) for name in ("web", "api"))
    first = await create(cluster, 1, "web", manifest=web)
    assert await placed(cluster, first, 1) == ["n1"]
    second = await create(cluster, 1, "api", manifest=api)
    await said(cluster, second, "blocked", "nearest miss n1: port 8077/tcp is held by web")
    await cluster.change_rc(first, replicas_desired=0)
    assert await placed(cluster, second, 1) == ["n1"]
