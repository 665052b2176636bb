"""A daemon set through freezes, farms that come and go, and records that are damaged or taken."""

from __future__ import annotations

import msgspec

from scheduler.decide import LabelSelectorScheduler
from scheduler.model import FleetView, PlacementRequest
from scheduler.protocol import Eligibility
from store import codec, operations
from store.manifests import Manifest
from store.nodes import Agent, Node, Reserved
from store.pods import Pod
from store.reality import Health, Intent, Reality
from store.work import Work
from tests.fleet import CLOCK, Cluster, RunningFarm, eventually, start_farm
from tests.integration.daemonset.sets import BAD, GOOD, KINDS, change, consistent, create, on, said, status
from tests.obedient import obedient


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
        async def eligible_nodes(self, request: PlacementRequest, view: FleetView) -> Eligibility:
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


async def test_a_pod_that_goes_on_failing_its_check_is_one_alert_until_it_is_well(
    cluster: Cluster, farm: RunningFarm, agents: None
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    daemonset = await create(cluster, unhealthy_after=0.0)
    await said(cluster, daemonset, "converged", desired=2)
    key = f"daemonset_ailing_{daemonset.id}"
    place = ("node2", "hello")
    entries = await cluster.entries(cluster.keys.tree("pods"))
    pod = codec.decode(Pod, entries[cluster.keys.pod(daemonset.id, *place)].value, "pod")
    # It was placed long ago: what was ill before that does not count.
    await cluster.put(cluster.keys.pod(daemonset.id, *place), msgspec.structs.replace(pod, at=1.0))
    stored = (await cluster.entries(cluster.keys.tree("reality")))[cluster.keys.reality(*place)]
    well = codec.decode(Reality, stored.value, stored.key)

    async def tells(health: Health, *alerts: str) -> None:
        await cluster.put(cluster.keys.reality(*place), msgspec.structs.replace(well, health=health))

        async def told() -> bool:
            found = await status(cluster, daemonset)
            return found.alerts == alerts and found.healthy == (2 if health.state == "passing" else 1)

        await eventually(told, what=f"{health.state}: {alerts}")

    await tells(Health("critical", CLOCK.now() - 200.0, "HTTP 500"))
    await tells(Health("critical", CLOCK.now() - 301.0, "HTTP 500"), key)
    (alert,) = farm.alerts.fired
    assert (alert.name, alert.item) == ("FarmdDaemonsetAiling", "daemonset/logs")
    assert alert.summary == (
        "daemonset 'logs': 1 of 2 pods is not healthy; node2/hello: HTTP 500; nothing restarts it, because"
        " unhealthy_after and health.restart_after are 0; farmctl pod logs node2/hello;"
        " farmctl pod restart node2/hello"
    )
    # A restart makes it neither well nor a second alert.
    await tells(Health("unknown", CLOCK.now(), "not checked yet"), key)
    await tells(Health("passing", CLOCK.now()))
    assert [each.incident_key for each in farm.alerts.fired] == [key]


async def test_r28_a_pod_that_goes_on_failing_its_check_is_restarted_where_it_is(
    cluster: Cluster, farm: RunningFarm
) -> None:
    await cluster.add_nodes({"node1": GOOD, "node2": GOOD})
    async with obedient(cluster) as nodes:
        daemonset = await create(cluster, unhealthy_after=0.3)
        await said(cluster, daemonset, "converged", desired=2)
        nodes.sick.add("node2")

        async def again() -> bool:
            return (await cluster.intents())["node2", "hello"].restart == 2

        await eventually(again, what="the second restart")
        nodes.sick.clear()
        await said(cluster, daemonset, "converged", desired=2)
    restarts = [audit for audit in await cluster.audits() if audit.action == "pods.restart"]
    assert [audit.relabelled for audit in restarts] == [["node2/hello"]] * 2
    assert restarts[0].reason == "1 pod unhealthy for 0.3 s (unhealthy_after)"
