"""Where a daemon set has its pods, on a real Consul: p2's table (``pkg/ds``), and contention."""

from __future__ import annotations

from alerting.alert import PREEMPTIVE_DS_CONTENTION
from store import codec
from store.daemonsets import DAEMON_SET_ID_LABEL
from store.manifests import Manifest
from store.nodes import Drain, Node
from store.pods import Pod
from tests.fleet import Cluster, RunningFarm, eventually
from tests.integration.daemonset.sets import BAD, GOOD, SELECTOR, change, consistent, create, on, said


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
    await said(cluster, daemonset, "converged", desired=2, placed=2)


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
