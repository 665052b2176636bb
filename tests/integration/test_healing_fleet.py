"""Self-healing on a real Consul: lost nodes, pods that stay unhealthy, and when nothing may heal (W17)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from farmd.commands import failsafe
from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from store import codec, operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.entry import Stored
from store.failsafe import Failsafe, FailsafeStore
from store.manifests import Manifest
from store.nodes import Node, Reserved
from store.ports import Request, Response
from store.rcs import ReplicationController
from store.reality import Intent
from store.status import Status
from store.work import Work
from tests.fleet import CLOCK, Cluster, cluster_on, eventually, farm_on
from tests.obedient import Obedient, obedient
from tests.toys import Faulty, is_transaction

ASKING = Manifest(id="hello", command=["sleep", "1000"], resources={"cpu": 1.0})
NODES = [f"n{number}" for number in range(5)]


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes({name: {} for name in NODES})
        for name in NODES:
            await made.put(made.keys.node(name), Node(capacity={"cpu": 8.0}))
        yield made


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[Obedient]:
    async with obedient(cluster) as made:
        yield made


async def status(cluster: Cluster, rc: ReplicationController) -> Status:
    entry = await cluster.client.read(cluster.keys.status("rcs", rc.id))
    return Status(state="progressing") if entry is None else codec.decode(Status, entry.value, entry.key)


async def says(cluster: Cluster, rc: ReplicationController, state: str, text: str = "") -> None:
    async def so() -> Status | None:
        found = await status(cluster, rc)
        return found if found.state == state and text in found.reason else None

    await eventually(so, what=f"{state} {text}")


async def on(cluster: Cluster, rc: ReplicationController) -> list[str]:
    return [node for node, _ in await cluster.pods(rc.id)]


async def acknowledge(cluster: Cluster, kind: str, text: str) -> None:
    """A person's word for what a kind is frozen by, as ``farmctl failsafe clear`` gives it."""

    async def recorded() -> Stored[Failsafe] | None:
        found = await FailsafeStore(cluster.client, cluster.keys).get(kind)
        return found if found is not None and text in found.record.evidence else None

    stored = await eventually(recorded, what=f"a freeze: {text}")
    call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/me", "known")
    mutation = await failsafe.clear(call, kind, stored.record.evidence, 600.0)
    await cluster.client.transaction(mutation.operations)


async def give_up(cluster: Cluster, node: str, ago: float = 0.0) -> None:
    """The fleet's verdict on a node whose agent is gone."""
    await cluster.lose_agents(node)
    lost = CLOCK.now() - ago
    await cluster.put(cluster.keys.work("nodes", node), Work(absent_since=lost - 60, lost_since=lost))


async def leaves(cluster: Cluster, rc: ReplicationController, *nodes: str) -> None:
    """The RC is whole elsewhere, with nothing of its own left on these nodes."""

    async def left() -> bool:
        stand = await on(cluster, rc)
        return len(stand) == rc.replicas_desired and not set(stand) & set(nodes)

    await eventually(left, what=f"{nodes} left")
    assert not {node for node, _ in await cluster.intents()} & set(nodes)
    books = await cluster.entries(cluster.keys.tree("reserved"))
    held = [k for k, e in books.items() if codec.decode(Reserved, e.value, k).instances]
    assert sorted(map(cluster.keys.last_part, held)) == sorted(await on(cluster, rc))


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
async def test_w17_a_lost_nodes_pod_is_replaced_in_one_transaction(
    cluster: Cluster, agents: Obedient, strategy: str
) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await cluster.create_rc("hello", 3, manifest=ASKING, strategy=strategy)
        await says(cluster, rc, "converged")
        old, *_ = await on(cluster, rc)
        await give_up(cluster, old)
        await leaves(cluster, rc, old)
    moved = [audit for audit in await cluster.audits() if audit.removed]
    assert [(audit.removed, len(audit.placed)) for audit in moved] == [([f"{old}/hello"], 1)]


async def test_r21_absence_alone_replaces_nothing(cluster: Cluster, agents: Obedient) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await cluster.create_rc("hello", 3, manifest=ASKING)
        waits = await cluster.create_rc(
            "waits", 3, manifest=Manifest(id="waits", command=["x"]), on_lost="wait"
        )
        await says(cluster, rc, "converged")
        await says(cluster, waits, "converged")
        stand = await on(cluster, rc)
        await cluster.lose_agents(stand[0])
        await cluster.change_rc(rc, replicas_desired=4)

        async def four() -> bool:
            return len(await on(cluster, rc)) == 4

        await eventually(four)
        assert set(stand) < set(await on(cluster, rc))
        before = await on(cluster, waits)
        for node in before[:1]:
            await give_up(cluster, node)
        await says(cluster, waits, "progressing")
        assert await on(cluster, waits) == before


async def test_r27_a_pod_that_stops_by_itself_is_replaced_after_it_did(
    cluster: Cluster, agents: Obedient
) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        stopping = Manifest(id="hello", command=["x"], stop_after=30.0)
        rc = await cluster.create_rc("hello", 3, manifest=stopping)
        await says(cluster, rc, "converged")
        old, *_ = before = await on(cluster, rc)
        await give_up(cluster, old, ago=10.0)
        await says(cluster, rc, "progressing")
        assert await on(cluster, rc) == before
        # Its time is up 40 seconds after the verdict; half a second is left.
        await give_up(cluster, old, ago=39.5)

        async def left() -> bool:
            stand = await on(cluster, rc)
            return len(stand) == 3 and old not in stand

        await eventually(left)


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
async def test_w17_a_pod_that_stays_unhealthy_is_replaced(
    cluster: Cluster, agents: Obedient, strategy: str
) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await cluster.create_rc("hello", 3, manifest=ASKING, unhealthy_after=0.6, strategy=strategy)
        await says(cluster, rc, "converged")
        old, *_ = await on(cluster, rc)
        agents.sick.add(old)
        await leaves(cluster, rc, old)
    last = (await cluster.audits())[-1]
    assert (last.action, last.reason) == ("transfer.finish", "unhealthy")


async def test_r28_a_pod_that_stays_unhealthy_and_can_move_nowhere_is_restarted(
    cluster: Cluster, agents: Obedient
) -> None:
    """There is one pod on each node, so none has room for another; each restart in vain waits longer."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        nodes = NODES
        rc = await cluster.create_rc("hello", len(nodes), manifest=ASKING, unhealthy_after=0.3)
        await says(cluster, rc, "converged")
        sick = nodes[0]
        agents.sick.add(sick)

        async def twice() -> bool:
            entry = await cluster.client.read(cluster.keys.intent(sick, "hello"))
            return entry is not None and codec.decode(Intent, entry.value, entry.key).restart == 2

        await eventually(twice, what="the second restart")
        agents.sick.clear()
        await says(cluster, rc, "converged")
        assert sorted(await on(cluster, rc)) == sorted(nodes)
    restarts = [audit for audit in await cluster.audits() if audit.action == "pods.restart"]
    assert [audit.relabelled for audit in restarts] == [[f"{sick}/hello"]] * 2
    assert restarts[0].reason == "1 pod unhealthy for 0.3 s (unhealthy_after)"
    assert restarts[1].at - restarts[0].at >= 0.6


@pytest.mark.parametrize("value", [None, b"\xffgarbage"], ids=["deleted", "garbage"])
@pytest.mark.parametrize("strategy", ["static", "dynamic"])
async def test_r22_a_missing_or_unreadable_reality_is_doubt_and_replaces_nothing(
    cluster: Cluster, agents: Obedient, strategy: str, value: bytes | None
) -> None:
    """Another pod that fails its check for as long is replaced meanwhile, and it alone."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await cluster.create_rc("hello", 3, manifest=ASKING, unhealthy_after=0.6, strategy=strategy)
        await says(cluster, rc, "converged")
        doubted, sick, _ = await on(cluster, rc)
        agents.deaf.add(doubted)
        key = cluster.keys.reality(doubted, "hello")
        if value is None:
            await cluster.client.delete(key)
        else:
            await cluster.client.put(key, value)
        agents.sick.add(sick)
        await leaves(cluster, rc, sick)
        assert doubted in await on(cluster, rc)
    moved = [audit for audit in await cluster.audits() if audit.removed]
    assert [audit.removed for audit in moved] == [[f"{sick}/hello"]]


async def test_r19_a_mass_loss_of_health_freezes_instead(cluster: Cluster, agents: Obedient) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, thaw_after=3600.0) as farm:
        rcs = [
            await cluster.create_rc(
                f"rc-{n}", 4, manifest=Manifest(id=f"p{n}", command=["x"]), unhealthy_after=0.5
            )
            for n in range(6)
        ]
        for rc in rcs:
            await says(cluster, rc, "converged")
        before = [await on(cluster, rc) for rc in rcs]
        agents.sick |= set(NODES[:4])
        for rc in rcs:
            await says(cluster, rc, "frozen", "instances fail")
        assert [await on(cluster, rc) for rc in rcs] == before

        async def told() -> bool:
            return "failsafe_more_than_50_of_the_instances_fail" in farm.alerts.firing

        await eventually(told, what="the alert of the freeze")


async def test_r19_replacements_beyond_the_budget_of_a_minute_freeze(
    cluster: Cluster, agents: Obedient
) -> None:
    """Twenty a minute are allowed in a small fleet; the rest waits for a person or for the thaw."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, thaw_after=3600.0):
        rcs = [
            await cluster.create_rc(
                f"rc-{n}",
                4,
                manifest=Manifest(id=f"p{n}", command=["x"]),
                max_unavailable=2,
                replicas_per_node=2,
            )
            for n in range(30)
        ]
        for rc in rcs:
            await says(cluster, rc, "converged")
        for node in NODES[:2]:
            await give_up(cluster, node)

        async def frozen() -> bool:
            states = [(await status(cluster, rc)).state for rc in rcs]
            return "frozen" in states

        await eventually(frozen)
        removed = sum(len(audit.removed) for audit in await cluster.audits())
        assert 0 < removed <= 36  # 30 % of 120 pods
        await acknowledge(cluster, "rcs", "than the removal budget allows")

        async def healed() -> bool:
            return not {node for rc in rcs for node in await on(cluster, rc)} & set(NODES[:2])

        await eventually(healed, what="the rest, on a person's word")


async def test_r21_a_node_that_came_back_in_between_keeps_its_pod(
    cluster: Cluster, agents: Obedient, consul_dev: str
) -> None:
    """The verdict is checked inside the transaction that acts on it."""
    transport = Faulty(HttpTransport(Address.from_environment({}, consul_dev)))
    client = ConsulClient(transport, clock=CLOCK)
    back: list[str] = []
    async with farm_on(client, "farm-1", keys=cluster.keys):
        rc = await cluster.create_rc("hello", 3, manifest=ASKING)
        await says(cluster, rc, "converged")
        old, *_ = before = await on(cluster, rc)

        async def come_back(request: Request) -> None:
            if is_transaction(request) and f"work/nodes/{old}".encode() in request.body and not back:
                back.append(old)
                await cluster.keep_present({old: None})
                await cluster.client.delete(cluster.keys.work("nodes", old))

        transport.before = come_back
        await give_up(cluster, old)

        async def tried() -> list[str]:
            return back

        await eventually(tried)
        await cluster.change_rc(rc, replicas_desired=4)

        async def four() -> bool:
            return len(await on(cluster, rc)) == 4

        await eventually(four)
        assert set(before) < set(await on(cluster, rc))
    await client.close()


async def test_many_replicas_a_node_fit_into_transactions(cluster: Cluster, agents: Obedient) -> None:
    """A node's reservations change once a transaction, so its pods come in several (R25)."""
    small = Manifest(id="hello", command=["x"], resources={"cpu": 0.1})
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await cluster.create_rc("hello", 200, manifest=small, replicas_per_node=40)

        async def all_there() -> bool:
            return len(await cluster.pods(rc.id)) == 200

        await eventually(all_there)
        await cluster.change_rc(rc, replicas_desired=0)

        async def all_gone() -> bool:
            return not await cluster.pods(rc.id)

        await eventually(all_gone)
    books = await cluster.entries(cluster.keys.tree("reserved"))
    assert not [k for k, e in books.items() if codec.decode(Reserved, e.value, k).instances]


async def test_r17_workers_of_one_farm_do_not_collide_over_a_node(
    cluster: Cluster, agents: Obedient, consul_dev: str
) -> None:
    """Twenty controllers fill five nodes at once: Consul refuses no reservation, and nobody is alerted."""
    transport = Faulty(HttpTransport(Address.from_environment({}, consul_dev)))
    client = ConsulClient(transport, clock=CLOCK)
    refused = []

    async def count(request: Request, response: Response) -> None:
        if is_transaction(request) and response.status == 409 and b"reserved/" in request.body:
            refused.append(response.body)

    transport.after = count
    async with farm_on(client, "farm-1", keys=cluster.keys) as farm:
        rcs = []
        for number in range(20):
            asking = Manifest(id=f"p{number}", command=["x"], resources={"cpu": 1.0})
            rcs.append(await cluster.create_rc(f"rc-{number}", 0, manifest=asking))
        for rc in rcs:
            await says(cluster, rc, "converged")
        refused.clear()
        wanted = [msgspec.structs.replace(rc, replicas_desired=2) for rc in rcs]
        await cluster.client.transaction(
            [operations.put(cluster.keys.record("rcs", rc.id), codec.encode(rc)) for rc in wanted]
        )

        async def full() -> bool:
            return len(await cluster.intents()) == 40

        await eventually(full)
        assert not [alert for alert in farm.alerts.fired if "not enough" in alert.summary]
    await client.close()
    books = await cluster.entries(cluster.keys.tree("reserved"))
    held = [codec.decode(Reserved, e.value, k) for k, e in books.items()]
    assert [len(book.instances) for book in held] == [8] * 5
    assert refused == []
