"""A daemon set's worker on a real Consul: p2's table (``pkg/ds``), then what is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from alerting.alert import PREEMPTIVE_DS_CONTENTION
from farmd.runtime.clock import SystemIds
from scheduler.model import FleetView, Request
from scheduler.protocol import Eligibility
from scheduler.selector import LabelSelectorScheduler
from store import codec, manifests, operations
from store.daemonsets import DAEMON_SET_ID_LABEL, DaemonSet
from store.intent import Intent
from store.manifests import Manifest
from store.nodes import Agent, Drain, Node, Reserved
from store.pods import Pod
from store.status import Status
from store.work import Work
from tests.fleet import HELLO, Cluster, RunningFarm, cluster_on, eventually, in_time, start_farm

GOOD, BAD = {"nodeQuality": "good"}, {"nodeQuality": "bad"}
SELECTOR = "nodeQuality=good"
KINDS = ("rcs", "daemonsets")


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        yield made


@pytest.fixture
async def farm(cluster: Cluster) -> AsyncIterator[RunningFarm]:
    running = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS)
    yield running
    await running.close()


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[None]:
    """Nodes obey, and everything that they run is healthy."""
    stop = asyncio.Event()
    obeying = asyncio.create_task(cluster.obey(stop))
    yield
    stop.set()
    await in_time(obeying)


async def create(
    cluster: Cluster, name: str = "logs", *, manifest: Manifest = HELLO, **fields: Any
) -> DaemonSet:
    """Write a daemon set with its manifest, as ``farmctl daemonset create`` would."""
    body = manifests.canonical(manifest)
    sha = manifests.digest(body)
    made = DaemonSet(
        **({"id": SystemIds().new(), "node_selector": SELECTOR, "min_healthy_time": 0.0} | fields),
        name=name,
        manifest=sha,
        pod_id=manifest.id,
    )
    await cluster.client.transaction(
        [
            operations.put(cluster.keys.manifest(sha), body),
            operations.create(cluster.keys.record("daemonsets", made.id), codec.encode(made)),
            operations.create(cluster.keys.name("daemonsets", name), codec.encode(made.id)),
        ]
    )
    return made


async def change(cluster: Cluster, daemonset: DaemonSet, **fields: Any) -> DaemonSet:
    changed = msgspec.structs.replace(daemonset, **fields)
    await cluster.put(cluster.keys.record("daemonsets", daemonset.id), changed)
    return changed


async def on(cluster: Cluster, daemonset: DaemonSet, *nodes: str) -> None:
    """Return once its pods stand on exactly these nodes."""

    async def there() -> bool:
        return [node for node, _ in await cluster.pods(daemonset.id)] == sorted(nodes)

    await eventually(there, what=f"pods on {nodes}")


async def status(cluster: Cluster, daemonset: DaemonSet) -> Status:
    entry = await cluster.client.read(cluster.keys.status("daemonsets", daemonset.id))
    return Status(state="progressing") if entry is None else codec.decode(Status, entry.value, entry.key)


async def said(cluster: Cluster, daemonset: DaemonSet, state: str, text: str = "") -> Status:
    """Its status, once it is so."""

    async def says() -> Status | None:
        found = await status(cluster, daemonset)
        return found if found.state == state and text in found.reason else None

    return await eventually(says, what=f"status {state} {text!r}")  # type: ignore[no-any-return]


async def consistent(cluster: Cluster, daemonset: DaemonSet) -> None:
    """Pods and intents agree, and the audit adds up to what stands."""
    pods = await cluster.pods(daemonset.id)
    intents = await cluster.intents()
    assert {place for place, intent in intents.items() if intent.owner == daemonset.id} == set(pods)
    audited: set[str] = set()
    for audit in await cluster.audits():
        if audit.id == daemonset.id and audit.action.startswith("pods."):
            assert not audited & set(audit.placed)
            audited = (audited | set(audit.placed)) - set(audit.removed)
    assert audited == {f"{node}/{instance}" for node, instance in pods}


# -- where pods are ------------------------------------------------------------------------------
async def test_every_eligible_node_gets_one_pod_in_an_audited_transaction(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": BAD, "node3": GOOD})
    daemonset = await create(cluster, pod_labels={"tier": "logs"})
    await on(cluster, daemonset, "node1", "node3")
    entry = await cluster.client.read(cluster.keys.pod(daemonset.id, "node1", "hello"))
    assert entry is not None
    pod = codec.decode(Pod, entry.value, entry.key)
    assert pod.labels == {"tier": "logs", "pod_id": "hello", DAEMON_SET_ID_LABEL: daemonset.id}
    found = await said(cluster, daemonset, "converged")
    assert (found.desired, found.placed, found.healthy, found.outdated) == (2, 2, 2, 0)
    (audit,) = [audit for audit in await cluster.audits() if audit.action == "pods.place"]
    assert (audit.kind, audit.actor, audit.placed) == (
        "daemonsets",
        "farm/farm-1",
        ["node1/hello", "node3/hello"],
    )
    assert (audit.before, audit.after) == ({"pods": 0}, {"pods": 2})
    await consistent(cluster, daemonset)


async def test_a_new_node_gets_its_pod_by_event_and_a_node_that_ceased_to_match_loses_it(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": BAD})
    daemonset = await create(cluster)
    await on(cluster, daemonset, "node1")
    await cluster.add_nodes({"node3": GOOD})
    await on(cluster, daemonset, "node1", "node3")
    await cluster.put(cluster.keys.node("node2"), Node(labels=GOOD))
    await on(cluster, daemonset, "node1", "node2", "node3")
    await cluster.put(cluster.keys.node("node1"), Node(labels=BAD))
    await on(cluster, daemonset, "node2", "node3")
    await consistent(cluster, daemonset)


async def test_no_pod_is_removed_while_no_node_is_eligible(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    daemonset = await create(cluster)
    await on(cluster, daemonset, "node1", "node2")
    changed = await change(cluster, daemonset, node_selector="nodeQuality=goof")
    found = await said(cluster, changed, "blocked", "refusing to remove the pods of 2 nodes")
    assert "2 nodes: selector 2" in found.reason
    assert len(await cluster.pods(daemonset.id)) == 2
    assert list(farm.alerts.firing) == [daemonset.id]
    await change(cluster, daemonset, node_selector=SELECTOR)
    await said(cluster, daemonset, "converged")
    assert farm.alerts.firing == {}


async def test_a_drain_empties_even_the_last_node(cluster: Cluster, farm: RunningFarm, agents: None) -> None:
    await cluster.add_nodes({"node1": GOOD})
    daemonset = await create(cluster)
    await on(cluster, daemonset, "node1")
    await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD, drain=Drain()))
    await on(cluster, daemonset)


async def test_a_cordon_keeps_new_pods_out_and_sends_none_away(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": BAD})
    daemonset = await create(cluster)
    await on(cluster, daemonset, "node1")
    await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD, cordoned=True))
    await cluster.put(cluster.keys.node("node2"), Node(labels=GOOD, cordoned=True))
    await cluster.add_nodes({"node3": GOOD})
    await on(cluster, daemonset, "node1", "node3")
    found = await said(cluster, daemonset, "converged")
    assert (found.desired, found.placed) == (2, 2)


async def test_a_full_node_gets_none_until_there_is_room(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    hungry = Manifest(id="big", command=["run"], resources={"cpu": 2})
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    await cluster.put(cluster.keys.node("node1"), Node(labels=GOOD, capacity={"cpu": 4}))
    await cluster.put(cluster.keys.node("node2"), Node(labels=GOOD, capacity={"cpu": 1}))
    daemonset = await create(cluster, manifest=hungry)
    await on(cluster, daemonset, "node1")
    await said(cluster, daemonset, "converged", "not on 1 node short of capacity")
    await cluster.put(cluster.keys.node("node2"), Node(labels=GOOD, capacity={"cpu": 2}))
    await on(cluster, daemonset, "node1", "node2")
    reserved = await cluster.entries(cluster.keys.tree("reserved"))
    assert len(reserved) == 2


async def test_disabled_means_no_effect_at_all(cluster: Cluster, farm: RunningFarm, agents: None) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    daemonset = await create(cluster, disabled=True)
    await said(cluster, daemonset, "disabled")
    assert await cluster.pods(daemonset.id) == []
    daemonset = await change(cluster, daemonset, disabled=False)
    await on(cluster, daemonset, "node1", "node2")
    daemonset = await change(cluster, daemonset, disabled=True, node_selector="x=y")
    await said(cluster, daemonset, "disabled")
    assert len(await cluster.pods(daemonset.id)) == 2


async def test_a_lost_intent_is_repaired(cluster: Cluster, farm: RunningFarm, agents: None) -> None:
    await cluster.add_nodes({"node1": GOOD})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    await cluster.client.delete(cluster.keys.intent("node1", "hello"))

    async def back() -> bool:
        return ("node1", "hello") in await cluster.intents()

    await eventually(back)


# -- contention ----------------------------------------------------------------------------------
async def test_the_younger_of_two_that_claim_a_node_is_blocked_and_named_and_comes_free(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    older = await create(cluster, "older")
    await on(cluster, older, "node1", "node2")
    younger = await create(cluster, "younger", node_selector="nodeQuality!=bad")
    found = await said(cluster, younger, "blocked", "contends with daemonset 'older'")
    assert "2 nodes, such as node1" in found.reason
    assert await cluster.pods(younger.id) == []
    (alert,) = farm.alerts.fired
    assert (alert.incident_key, alert.urgency) == (f"{PREEMPTIVE_DS_CONTENTION}_{younger.id}", "low")
    assert alert.details["daemonset_id"] == younger.id
    await said(cluster, older, "converged")
    await change(cluster, older, disabled=True)
    # Its pods stay, and keep their places; but nobody claims nodes for it any more.
    await said(cluster, younger, "blocked", "no node is eligible (2 nodes: held 2)")
    await change(cluster, older, deleting=True)
    await on(cluster, younger, "node1", "node2")

    async def over() -> bool:
        return farm.alerts.firing == {}

    await eventually(over)


async def test_daemon_sets_of_one_pod_on_different_nodes_do_not_contend(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": BAD})
    first = await create(cluster, "first")
    second = await create(cluster, "second", node_selector="nodeQuality=bad")
    await on(cluster, first, "node1")
    await on(cluster, second, "node2")
    assert farm.alerts.fired == []
    await cluster.put(cluster.keys.node("node2"), Node(labels={"nodeQuality": "good"}))
    await on(cluster, first, "node1")


async def test_a_node_where_a_controller_has_the_instance_is_left_out(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    rc = await cluster.create_rc("hello", 1, node_selector=SELECTOR)

    async def placed() -> bool:
        return len(await cluster.pods(rc.id)) == 1

    await eventually(placed)
    ((taken, _),) = await cluster.pods(rc.id)
    daemonset = await create(cluster)
    await on(cluster, daemonset, *({"node1", "node2"} - {taken}))
    await said(cluster, daemonset, "converged", "instance held by another owner")
    await cluster.change_rc(rc, replicas_desired=0)
    await on(cluster, daemonset, "node1", "node2")


# -- changing manifests --------------------------------------------------------------------------
NEWER = Manifest(id="hello", command=["sleep", "2000"])


async def renew(cluster: Cluster, daemonset: DaemonSet) -> DaemonSet:
    body = manifests.canonical(NEWER)
    sha = manifests.digest(body)
    await cluster.client.put(cluster.keys.manifest(sha), body)
    return await change(cluster, daemonset, manifest=sha)


async def test_a_new_manifest_reaches_every_node_in_place(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(5)})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    renewed = await renew(cluster, daemonset)

    async def everywhere() -> bool:
        found = await status(cluster, renewed)
        return found.state == "converged" and {i.manifest for i in (await cluster.intents()).values()} == {
            renewed.manifest
        }

    await eventually(everywhere)
    replaced = [a for a in await cluster.audits() if a.action == "pods.replace"]
    # All but one stay healthy, so it is one after the other.
    assert [len(audit.relabelled) for audit in replaced] == [1] * 5
    await consistent(cluster, renewed)


async def test_min_health_holds_back_what_nobody_proved(cluster: Cluster, farm: RunningFarm) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(4)})
    daemonset = await create(cluster, min_health="50%")
    stop = asyncio.Event()
    obeying = asyncio.create_task(cluster.obey(stop))
    await said(cluster, daemonset, "converged")
    stop.set()
    await in_time(obeying)
    # From now on nodes take nothing up: half of the pods may be changed, and not one more.
    renewed = await renew(cluster, daemonset)
    found = await said(cluster, renewed, "progressing", "min_health keeps 2")
    assert found.outdated == 2
    newer = [i for i in (await cluster.intents()).values() if i.manifest == renewed.manifest]
    assert len(newer) == 2


async def test_the_rate_spreads_placements_over_time(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(5)})
    daemonset = await create(cluster, rate=2)
    found = await said(cluster, daemonset, "progressing", "at most 2 nodes a minute")
    assert (found.desired, found.placed) == (5, 2)


# -- deletion, freezes, farms --------------------------------------------------------------------
async def test_frozen_removes_nothing_unless_a_person_said_so_since(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({f"node{n}": GOOD for n in range(8)})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    names = [f"node{n}" for n in range(1, 7)]
    await cluster.lose_agents(*names)

    async def frozen() -> bool:
        return await cluster.client.read(cluster.keys.failsafe("daemonsets")) is not None

    await eventually(frozen)
    await cluster.put(cluster.keys.node("node0"), Node(labels=BAD))
    await said(cluster, daemonset, "frozen", "agents")
    assert len(await cluster.pods(daemonset.id)) == 8
    # The record changed after the freeze: that is a person's word.
    await change(cluster, daemonset, labels={"touched": "yes"})
    await on(cluster, daemonset, *(f"node{n}" for n in range(1, 8)))


async def test_r19_a_fleet_that_loses_its_labels_at_once_is_no_reason_to_empty_it(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    names = [f"node{n:02}" for n in range(30)]
    await cluster.add_nodes(dict.fromkeys(names, GOOD))
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    await cluster.client.transaction(
        [operations.put(cluster.keys.node(name), codec.encode(Node(labels=BAD))) for name in names[1:]]
    )
    await said(cluster, daemonset, "frozen", "than the budget allows")
    assert len(await cluster.pods(daemonset.id)) >= 10

    async def told() -> bool:
        return any(key.startswith("failsafe_daemon_sets_would_remove") for key in farm.alerts.firing)

    await eventually(told, what="the alert of the freeze")
    for name in names:
        await cluster.put(cluster.keys.node(name), Node(labels=GOOD))
    await said(cluster, daemonset, "converged")


async def test_a_persons_selector_may_remove_as_many_as_it_says(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    names = [f"node{n:02}" for n in range(30)]
    await cluster.add_nodes({name: {**GOOD, "n": name} for name in names})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    await change(cluster, daemonset, node_selector="n=node07")
    await on(cluster, daemonset, "node07")
    assert farm.alerts.fired == []


async def test_daemon_sets_that_reserve_on_the_same_nodes_at_once_all_get_there(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    names = [f"node{n}" for n in range(8)]
    await cluster.add_nodes(dict.fromkeys(names, GOOD))
    for name in names:
        await cluster.put(cluster.keys.node(name), Node(labels=GOOD, capacity={"cpu": 4}))
    made = [
        await create(cluster, f"set-{n}", manifest=Manifest(id=f"p{n}", command=["x"], resources={"cpu": 1}))
        for n in range(5)
    ]

    async def all_placed() -> bool:
        counts = [len(await cluster.pods(daemonset.id)) for daemonset in made]
        return sum(counts) == 4 * 8

    await eventually(all_placed, what="four pods on each of eight nodes")
    reserved = await cluster.entries(cluster.keys.tree("reserved"))
    for entry in reserved.values():
        book = codec.decode(Reserved, entry.value, entry.key)
        assert sum(amounts["cpu"] for amounts in book.instances.values()) == 4
    for daemonset in made:
        await consistent(cluster, daemonset)


async def test_a_pod_stays_on_a_node_that_is_given_up(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD, "node3": GOOD})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    await cluster.lose_agents("node2")
    await cluster.put(cluster.keys.work("nodes", "node2"), Work(lost_since=1.0, absent_since=1.0))

    async def uncounted() -> bool:
        found = await status(cluster, daemonset)
        return (found.state, found.desired, found.placed) == ("converged", 2, 2)

    await eventually(uncounted)
    assert len(await cluster.pods(daemonset.id)) == 3


async def test_w20_another_farm_takes_over_an_unchanged_daemon_set_at_once(
    cluster: Cluster, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD})
    first = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS)
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    second = await start_farm(cluster.client, "farm-2", keys=cluster.keys, kinds=KINDS, seed=2)
    try:
        await first.close()
        held = await cluster.entries(cluster.keys.tree("locks") + "daemonsets/")
        assert daemonset.id not in second.owned or held
        await cluster.add_nodes({"node2": GOOD})
        await on(cluster, daemonset, "node1", "node2")
        assert daemonset.id in second.owned
    finally:
        await second.close()


async def test_a_converged_daemon_set_asks_nothing_and_a_changed_node_costs_one_question(
    cluster: Cluster, agents: None
) -> None:
    questions: list[frozenset[str] | None] = []

    class Counting(LabelSelectorScheduler):
        async def eligible_nodes(self, request: Request, view: FleetView) -> Eligibility:
            questions.append(request.among)
            return await super().eligible_nodes(request, view)

    await cluster.add_nodes({f"node{n}": GOOD for n in range(20)})
    running = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS, scheduler=Counting())
    try:
        daemonset = await create(cluster)
        await said(cluster, daemonset, "converged")
        questions.clear()
        await cluster.put(cluster.keys.node("node3"), Node(labels=BAD))
        await on(cluster, daemonset, *(f"node{n}" for n in range(20) if n != 3))
        await said(cluster, daemonset, "converged")
        assert {frozenset({"node3"})} == set(questions)
    finally:
        await running.close()


async def test_a_record_that_does_not_decode_is_said_and_touches_nothing(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD})
    daemonset = await create(cluster)
    await said(cluster, daemonset, "converged")
    await cluster.client.put(cluster.keys.record("daemonsets", daemonset.id), b'{"id": 7}')
    await said(cluster, daemonset, "blocked", "daemonsets/")
    assert len(await cluster.pods(daemonset.id)) == 1


async def test_an_absent_agents_node_gets_no_pod_until_it_is_back(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    await cluster.lose_agents("node2")
    daemonset = await create(cluster)
    await on(cluster, daemonset, "node1")
    session = cluster.nodes["node2"]
    value = codec.encode(Agent(node="node2", version="test"))
    await cluster.client.put(cluster.keys.agent("node2"), value, acquire=session.id)
    await on(cluster, daemonset, "node1", "node2")


async def test_r14_one_that_is_taken_is_left_alone_and_once_lent_it_keeps_what_its_manager_placed(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({f"node{number}": GOOD for number in (1, 2)})
    managed = {"managed_by": "deployments/1", "taken": True, "hands": 1, "numbered": True}
    daemonset = await create(cluster, **managed)
    marker = await create(cluster, "marker", manifest=Manifest(id="marker", command=["x"]))
    await on(cluster, marker, "node1", "node2")
    assert await cluster.pods(daemonset.id) == []
    intent, pod = Intent(daemonset.manifest, daemonset.id), Pod(daemonset.manifest, {}, 1.0)
    released = msgspec.structs.replace(daemonset, managed_by="", taken=False, hands=2)
    await cluster.client.transaction(
        [
            operations.create(cluster.keys.intent("node1", "hello~7"), codec.encode(intent)),
            operations.create(cluster.keys.pod(daemonset.id, "node1", "hello~7"), codec.encode(pod)),
            operations.put(cluster.keys.record("daemonsets", daemonset.id), codec.encode(released)),
        ]
    )
    await said(cluster, daemonset, "converged")
    assert await cluster.pods(daemonset.id) == [("node1", "hello~7"), ("node2", "hello~0")]
    placed = [audit.placed for audit in await cluster.audits() if audit.id == daemonset.id]
    assert placed == [["node2/hello~0"]]
