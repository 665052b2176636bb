"""Moves make before break on a real Consul: every step, whoever takes it, and what interrupts them (W16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from store import codec, operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.locks import Holder
from store.manifests import Manifest
from store.nodes import Drain, Node, Reserved
from store.ports import Request
from store.rcs import ReplicationController
from store.reality import Intent
from store.sessions import Session
from store.status import Status
from store.work import Work
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, farm_on
from tests.mortal import bury, mortal_farm, said
from tests.obedient import Obedient, obedient
from tests.toys import Faulty, is_transaction

GOOD, BAD = {"q": "good"}, {"q": "bad"}
ASKING = Manifest(id="hello", command=["sleep", "1000"], resources={"cpu": 1.0})
NODES = {f"n{number}": GOOD for number in range(4)}


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        await made.add_nodes(NODES)
        for name in NODES:
            await made.put(made.keys.node(name), Node(labels=dict(GOOD), capacity={"cpu": 2.0}))
        yield made


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[Obedient]:
    async with obedient(cluster) as made:
        yield made


async def three(cluster: Cluster, **fields: object) -> ReplicationController:
    """A dynamic RC with three pods that ask for a processor each."""
    chosen = {"node_selector": "q=good", "strategy": "dynamic", "manifest": ASKING, "name": "hello"} | fields
    name = str(chosen.pop("name"))
    return await cluster.create_rc(name, 3, **chosen)  # type: ignore[arg-type]


async def label(cluster: Cluster, node: str, labels: dict[str, str], **fields: object) -> None:
    record = Node(labels=dict(labels), capacity={"cpu": 2.0}, **fields)  # type: ignore[arg-type]
    await cluster.put(cluster.keys.node(node), record)


async def on(cluster: Cluster, rc: ReplicationController) -> list[str]:
    return [node for node, _ in await cluster.pods(rc.id)]


async def converged(cluster: Cluster, rc: ReplicationController) -> list[str]:
    async def says() -> bool:
        return (await status(cluster, rc)).state == "converged"

    await eventually(says, what="converged")
    return await on(cluster, rc)


async def status(cluster: Cluster, rc: ReplicationController) -> Status:
    entry = await cluster.client.read(cluster.keys.status("rcs", rc.id))
    return Status(state="progressing") if entry is None else codec.decode(Status, entry.value, entry.key)


async def work(cluster: Cluster, rc: ReplicationController) -> Work:
    entry = await cluster.client.read(cluster.keys.work("rcs", rc.id))
    return Work() if entry is None else codec.decode(Work, entry.value, entry.key)


async def reserved(cluster: Cluster) -> dict[str, list[str]]:
    """Node → instances that hold something there."""
    found = await cluster.entries(cluster.keys.tree("reserved"))
    books = {key: codec.decode(Reserved, entry.value, key) for key, entry in found.items()}
    return {cluster.keys.last_part(key): sorted(b.instances) for key, b in books.items() if b.instances}


async def actions(cluster: Cluster) -> list[str]:
    return [audit.action for audit in await cluster.audits() if audit.action.startswith("transfer.")]


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    await eventually(condition, what=what)


async def under_way(cluster: Cluster, rc: ReplicationController) -> Callable[[], Awaitable[bool]]:
    async def stands() -> bool:
        return len(await cluster.pods(rc.id)) == rc.replicas_desired + 1

    return stands


async def settled(cluster: Cluster, rc: ReplicationController, *avoided: str) -> None:
    """Three pods, none where it must not be, nothing left of a move, and no reservation too many (W16)."""

    async def done() -> bool:
        stand = await on(cluster, rc)
        return (
            len(stand) == rc.replicas_desired
            and not set(stand) & set(avoided)
            and (await work(cluster, rc)).transfer is None
        )

    await until(done, "the move is over")
    stand = await on(cluster, rc)
    assert await reserved(cluster) == {node: ["hello"] for node in stand}
    assert sorted(node for node, _ in await cluster.intents()) == sorted(stand)


async def test_w16_the_old_pod_goes_after_the_new_one_is_healthy(cluster: Cluster, agents: Obedient) -> None:
    """NodeTransferWhenAllPodsHealthy, TransferNodeHappyPath."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await three(cluster)
        old, *_ = await converged(cluster, rc)
        (spare,) = set(NODES) - set(await on(cluster, rc))
        agents.deaf.add(spare)
        await label(cluster, old, BAD)
        await until(await under_way(cluster, rc), "the new pod beside the old")
        assert old in await on(cluster, rc)
        assert sorted(await reserved(cluster)) == sorted(NODES)
        said = await eventually(lambda: _reason(cluster, rc))
        assert f"moving hello from {old} to {spare}" in said
        agents.deaf.clear()
        await settled(cluster, rc, old)
        assert await converged(cluster, rc) == sorted(set(NODES) - {old})
    assert await actions(cluster) == ["transfer.start", "transfer.place", "transfer.finish"]
    moves = {str(audit.after["transfer"]) for audit in await cluster.audits() if "transfer" in audit.after}
    assert len(moves) == 1


async def _reason(cluster: Cluster, rc: ReplicationController) -> str:
    return (await status(cluster, rc)).reason


async def test_node_transfer_noop_if_static_strategy(cluster: Cluster, agents: Obedient) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await three(cluster, strategy="static")
        stand = await converged(cluster, rc)
        await label(cluster, stand[0], BAD)
        # A change that the farm must act on proves that it saw the node's change before it.
        await cluster.change_rc(rc, replicas_desired=2)
        assert len(await _count(cluster, rc, 2)) == 2
    assert await actions(cluster) == []


async def _count(cluster: Cluster, rc: ReplicationController, count: int) -> list[str]:
    async def enough() -> bool:
        return len(await cluster.pods(rc.id)) == count

    await until(enough, f"{count} pods")
    return await on(cluster, rc)


async def test_w17_a_drain_moves_static_pods_too(cluster: Cluster, agents: Obedient) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await three(cluster, strategy="static")
        old, *_ = await converged(cluster, rc)
        await label(cluster, old, GOOD, drain=Drain(stage="pods"))
        await settled(cluster, rc, old)
    assert (await cluster.audits())[-1].reason == "draining"


async def test_node_transfer_noop_if_lock_held(cluster: Cluster, agents: Obedient) -> None:
    """While somebody else holds the mutation lock nothing starts; afterwards it does."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys):
        rc = await three(cluster)
        old, *_ = await converged(cluster, rc)
        rollout = await Session.open(cluster.client, CLOCK, name="rollout", ttl=60)
        lock = operations.lock(
            cluster.keys.mutation_lock("rcs", rc.id), Holder("rollouts", "7", "x").value(), rollout.id
        )
        await cluster.client.transaction([lock])
        await label(cluster, old, BAD)

        async def refused() -> bool:
            return "locked by rollouts/7" in (await status(cluster, rc)).reason

        await until(refused, "the reason")
        assert await actions(cluster) == []
        await rollout.destroy()
        await settled(cluster, rc, old)


async def test_node_transfer_doesnt_start_if_the_lock_is_taken_in_between(
    cluster: Cluster, agents: Obedient, consul_dev: str
) -> None:
    """The lock that turns up after it was looked for is met inside the transaction."""
    transport = Faulty(HttpTransport(Address.from_environment({}, consul_dev)))
    client = ConsulClient(transport, clock=CLOCK)
    rollout = await Session.open(cluster.client, CLOCK, name="rollout", ttl=60)
    locked = asyncio.Event()
    async with farm_on(client, "farm-1", keys=cluster.keys):
        rc = await three(cluster)
        old, *_ = await converged(cluster, rc)
        key = cluster.keys.mutation_lock("rcs", rc.id)

        async def take_it(request: Request) -> None:
            if is_transaction(request) and "transfer.start" in said(request) and not locked.is_set():
                locked.set()
                value = Holder("rollouts", "7", "x").value()
                await cluster.client.transaction([operations.lock(key, value, rollout.id)])

        transport.before = take_it
        await label(cluster, old, BAD)

        async def refused() -> bool:
            return "locked by rollouts/7" in (await status(cluster, rc)).reason

        await until(refused, "the reason")
        assert locked.is_set()
        assert await actions(cluster) == []
        assert (await work(cluster, rc)).transfer is None
        await rollout.destroy()
        await settled(cluster, rc, old)
    await client.close()


# -- a farm dies after each step ---------------------------------------------------------------
@pytest.mark.parametrize("answered", [True, False], ids=["acknowledged", "answer lost"])
@pytest.mark.parametrize("action", ["transfer.start", "transfer.place", "transfer.finish"])
async def test_w16_another_farm_finishes_what_one_began(
    cluster: Cluster, agents: Obedient, consul_dev: str, action: str, answered: bool
) -> None:
    async with mortal_farm(cluster, consul_dev, action, answered=answered) as mortal:
        rc = await three(cluster)
        old, *_ = await converged(cluster, rc)
        if action == "transfer.place":
            agents.deaf |= set(NODES) - set(await on(cluster, rc))
        await label(cluster, old, BAD)
        await mortal.falls()
        before = (await work(cluster, rc)).transfer
        await bury(cluster)
        agents.deaf.clear()
        async with farm_on(cluster.client, "heir", keys=cluster.keys):
            await settled(cluster, rc, old)
    assert await actions(cluster) == ["transfer.start", "transfer.place", "transfer.finish"]
    if before is not None:
        ends = {audit.after.get("transfer") for audit in await cluster.audits() if "transfer" in audit.after}
        assert ends == {before.id}


async def test_w16_another_farm_rolls_back_what_one_began(
    cluster: Cluster, agents: Obedient, consul_dev: str
) -> None:
    async with mortal_farm(cluster, consul_dev, "transfer.place", answered=True) as mortal:
        rc = await three(cluster, transfer_timeout=1.5)
        stand = await converged(cluster, rc)
        agents.deaf |= set(NODES) - set(stand)
        await label(cluster, stand[0], BAD)
        await mortal.falls()
        await bury(cluster)
        async with farm_on(cluster.client, "heir", keys=cluster.keys):
            await settled(cluster, rc)
    assert await on(cluster, rc) == stand
    assert await actions(cluster) == ["transfer.start", "transfer.place", "transfer.rollback"]


@pytest.mark.parametrize("answered", [True, False], ids=["acknowledged", "answer lost"])
@pytest.mark.parametrize("action", ["transfer.rollback", "transfer.cancel"])
async def test_w16_a_move_that_a_dead_farm_took_back_is_taken_back_once(
    cluster: Cluster, agents: Obedient, consul_dev: str, action: str, answered: bool
) -> None:
    """The room of the new place is given back with the move, whoever looks next."""
    async with mortal_farm(cluster, consul_dev, action, answered=answered) as mortal:
        rc = await three(cluster, transfer_timeout=1.0 if action == "transfer.rollback" else 300.0)
        stand = await converged(cluster, rc)
        agents.deaf |= set(NODES) - set(stand)
        await label(cluster, stand[0], BAD)
        if action == "transfer.cancel":
            await until(await under_way(cluster, rc), "the new pod beside the old")
            await label(cluster, stand[0], GOOD)
        await mortal.falls()
        await bury(cluster)
        async with farm_on(cluster.client, "heir", keys=cluster.keys):
            await settled(cluster, rc)
            await eventually(lambda: _reason_of_heir(cluster, rc), what="the heir speaks")
            await settled(cluster, rc)
    assert await on(cluster, rc) == stand
    assert await actions(cluster) == ["transfer.start", "transfer.place", action]


async def _reason_of_heir(cluster: Cluster, rc: ReplicationController) -> bool:
    """Whether the heir has looked: its word on the pod that should move, or that all is well."""
    said = await status(cluster, rc)
    return said.farm == "heir" or said.state == "converged" or "the last move failed" in said.reason


# -- what goes wrong ---------------------------------------------------------------------------
async def test_w16_a_failed_move_is_taken_back_and_told(cluster: Cluster, agents: Obedient) -> None:
    """The allocation is given back (p2 leaked it), the alert names what to do, the next try waits."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys) as farm:
        rc = await three(cluster, transfer_timeout=0.5)
        stand = await converged(cluster, rc)
        (spare,) = set(NODES) - set(stand)
        agents.sick.add(spare)
        await label(cluster, stand[0], BAD)

        async def told() -> bool:
            return f"transfer_{rc.id}" in farm.alerts.firing

        await until(told, "the alert")
        await settled(cluster, rc)
        assert await on(cluster, rc) == stand
        alert = farm.alerts.firing[f"transfer_{rc.id}"]
        assert alert.urgency == "low"
        assert all(text in alert.summary for text in (spare, stand[0], "not healthy after", "cordon"))
        noted = await work(cluster, rc)
        assert (noted.transfer_failures, noted.transfer_not_before > CLOCK.now()) == (1, True)
        assert [entry.action for entry in await cluster.audits()][-1] == "transfer.rollback"


async def test_alert_if_cannot_allocate_nodes(cluster: Cluster, agents: Obedient) -> None:
    """No place: low alert, the pod stays, and room that comes later is used at once."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys) as farm:
        rc = await three(cluster)
        stand = await converged(cluster, rc)
        (spare,) = set(NODES) - set(stand)
        await label(cluster, spare, GOOD, cordoned=True)
        await label(cluster, stand[0], BAD)

        async def told() -> bool:
            return f"transfer_{rc.id}" in farm.alerts.firing

        await until(told, "the alert")
        assert await on(cluster, rc) == stand
        assert await actions(cluster) == []
        await label(cluster, spare, GOOD)
        await settled(cluster, rc, stand[0])

        async def over() -> bool:
            return not farm.alerts.firing

        await until(over, "the alert ends")


async def test_w10_a_move_never_takes_an_intent_of_somebody_else(cluster: Cluster, agents: Obedient) -> None:
    """An intent that turns up on the reserved place stays, and the move is taken back."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, own_trees_pause=3600.0):
        rc = await three(cluster)
        stand = await converged(cluster, rc)
        (spare,) = set(NODES) - set(stand)
        theirs = Intent(manifest="f" * 64, owner="feedfeedfeedfeed")
        await cluster.put(cluster.keys.intent(spare, "hello"), theirs)
        await label(cluster, stand[0], BAD)

        async def taken_back() -> bool:
            return "transfer.rollback" in await actions(cluster) or bool(await _reason(cluster, rc))

        await until(taken_back, "the move is refused")
        assert (await cluster.intents())[spare, "hello"] == theirs
        assert await on(cluster, rc) == stand


# -- what people do meanwhile ------------------------------------------------------------------
@pytest.fixture
async def moving(
    cluster: Cluster, agents: Obedient
) -> AsyncIterator[tuple[RunningFarm, ReplicationController, str, str]]:
    """A move that waits for its new pod's health: (farm, rc, old node, new node)."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys) as farm:
        rc = await three(cluster)
        old, *_ = await converged(cluster, rc)
        (spare,) = set(NODES) - set(await on(cluster, rc))
        agents.deaf.add(spare)
        await label(cluster, old, BAD)
        await until(await under_way(cluster, rc), "the new pod beside the old")
        yield farm, rc, old, spare


Moving = tuple[RunningFarm, ReplicationController, str, str]


async def test_replicas_decreased_during_a_move(cluster: Cluster, agents: Obedient, moving: Moving) -> None:
    _, rc, old, spare = moving
    rc = await cluster.change_rc(rc, replicas_desired=2)
    await settled(cluster, rc, old, spare)


async def test_scaled_to_nothing_during_a_move(cluster: Cluster, agents: Obedient, moving: Moving) -> None:
    _, rc, *_ = moving
    rc = await cluster.change_rc(rc, replicas_desired=0, deleting=True)
    await settled(cluster, rc)


async def test_disabled_during_a_move(cluster: Cluster, agents: Obedient, moving: Moving) -> None:
    """It stands still, healthy or not, and goes on when it is enabled."""
    _, rc, old, _ = moving
    rc = await cluster.change_rc(rc, disabled=True)

    async def disabled() -> bool:
        return (await status(cluster, rc)).state == "disabled"

    await until(disabled, "disabled")
    agents.deaf.clear()
    await cluster.change_rc(rc, disabled=True, pod_labels={"a": "b"})
    assert len(await on(cluster, rc)) == 4
    rc = await cluster.change_rc(rc, disabled=False)
    await settled(cluster, rc, old)


async def test_updated_during_a_move(cluster: Cluster, agents: Obedient, moving: Moving) -> None:
    """The new pod takes the new manifest and arrives with it; the old one leaves as it is."""
    _, rc, old, _ = moving
    newer = Manifest(id="hello", command=["sleep", "2000"], resources={"cpu": 2.0})
    other = await cluster.create_rc("other", 0, manifest=newer)
    agents.deaf.clear()
    rc = await cluster.change_rc(rc, manifest=other.manifest)
    await settled(cluster, rc, old)

    async def all_new() -> bool:
        books = await cluster.entries(cluster.keys.tree("reserved"))
        amounts = [codec.decode(Reserved, e.value, k).instances.get("hello") for k, e in books.items()]
        return [a["cpu"] for a in amounts if a] == [2.0, 2.0, 2.0]

    await until(all_new, "three pods with the new manifest's resources")


async def test_eligible_again_during_a_move(cluster: Cluster, agents: Obedient, moving: Moving) -> None:
    _, rc, old, spare = moving
    await label(cluster, old, GOOD)
    await settled(cluster, rc, spare)
    assert (await actions(cluster))[-1] == "transfer.cancel"


async def test_a_fleet_wide_limit_lets_the_next_go_when_one_ends(cluster: Cluster, agents: Obedient) -> None:
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, max_transfers=1):
        rcs = [
            await three(cluster, name=f"rc-{number}", manifest=Manifest(id=f"p{number}", command=["x"]))
            for number in range(3)
        ]
        for rc in rcs:
            await converged(cluster, rc)
        counts = dict.fromkeys(NODES, 0)
        for rc in rcs:
            for node in await on(cluster, rc):
                counts[node] += 1
        old = max(counts, key=lambda node: counts[node])
        await label(cluster, old, BAD)

        async def gone() -> bool:
            return not any([old in await on(cluster, rc) for rc in rcs])

        await until(gone, "all moved")
    order = [a.action for a in await cluster.audits() if a.action.startswith("transfer.")]
    standing = most = 0
    for action in order:
        standing += {"transfer.start": 1, "transfer.place": 0}.get(action, -1)
        most = max(most, standing)
    assert (most, standing, len(order)) == (1, 0, 3 * counts[old])


async def test_w17_a_whole_drain_system_pods_last(cluster: Cluster, agents: Obedient) -> None:
    """The node's own worker advances the stages; every controller leaves in its turn."""
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, kinds=("rcs", "nodes")):
        rc = await three(cluster, strategy="static")
        log_shipper = Manifest(id="logs", command=["x"], system=True)
        system = await three(cluster, name="logs", manifest=log_shipper, strategy="static")
        stand = set(await converged(cluster, rc)) & set(await converged(cluster, system))
        old = min(stand)
        drain = Drain(stage="pods", since=CLOCK.now(), deadline=CLOCK.now() + 600)
        await label(cluster, old, GOOD, drain=drain)

        async def done() -> bool:
            entry = await cluster.client.read(cluster.keys.node(old))
            assert entry is not None
            record = codec.decode(Node, entry.value, entry.key)
            return record.drain is not None and record.drain.stage == "done"

        await until(done, "the drain is done")
        assert old not in [*await on(cluster, rc), *await on(cluster, system)]
    removed = [audit.removed[0] for audit in await cluster.audits() if audit.action == "transfer.finish"]
    assert removed == [f"{old}/hello", f"{old}/logs"]
