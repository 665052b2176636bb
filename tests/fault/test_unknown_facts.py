"""R21: what only an agent says of its node is unknown while the agent is absent or its record is unreadable.

Controllers and daemon sets here select by labels that nobody but agents say. Each case ends with another node
that joins: whoever takes it has looked at the fleet once more, and has left every other pod where it was.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import codec, operations, registration
from store.daemonsets import DaemonSet
from store.nodes import Agent, Node
from store.rcs import ReplicationController
from store.work import Work
from tests.agents import AgentProcess, agents_on, alive
from tests.fault.rig import Rig, named, rig_on
from tests.obedient import Obedient, obedient

ZONE = {"zone": "a"}
SELECTOR = "zone=a"
KINDS = ("rcs", "daemonsets", "nodes")


@pytest.fixture
async def rig(consul_dev: str) -> AsyncIterator[Rig]:
    async with rig_on(consul_dev) as made:
        yield made


@pytest.fixture
async def agents(rig: Rig) -> AsyncIterator[Obedient]:
    async with obedient(rig.cluster) as made:
        yield made


async def join(rig: Rig, *nodes: str, labels: dict[str, str] = ZONE) -> None:
    """Agents whose labels nobody else says, each under a session of its own."""
    for node in nodes:
        await registration.register_node(rig.client, rig.keys, node)
        session = await rig.client.create_session(name=node, ttl=3600, lock_delay=0.001)
        said = Agent(node=node, version="test", labels=labels, capacity={"cpu": 4.0})
        await rig.cluster.write(
            [
                operations.put(rig.keys.node(node), codec.encode(Node())),
                operations.lock(rig.keys.agent(node), codec.encode(said), session),
            ]
        )


async def vanish(rig: Rig, node: str) -> None:
    """An agent's session ends, as Consul ends it at twice its TTL."""
    entry = await rig.client.read(rig.keys.agent(node), mode="consistent")
    assert entry is not None
    await rig.client.destroy_session(entry.session)


async def stand(rig: Rig, owner: str, *nodes: str) -> None:
    """Wait until an owner's pods stand on exactly these nodes."""

    async def so() -> bool:
        return [node for node, _ in await rig.cluster.pods(owner)] == sorted(nodes)

    await rig.until(so, f"pods on {nodes}")


async def healthy(rig: Rig, kind: str, owner: str, count: int) -> None:
    """Wait until an owner says that so many of its pods are healthy and nothing is left to do."""

    async def so() -> bool:
        status = await rig.status(owner, kind)
        return status is not None and (status.state, status.healthy) == ("converged", count)

    await rig.until(so, f"{count} healthy pods")


async def owners(rig: Rig) -> tuple[ReplicationController, DaemonSet]:
    """A dynamic controller on two of the nodes n1, n2 and n3, and a daemon set on all of them."""
    daemonset = await rig.daemonset(manifest=named("logs"), node_selector=SELECTOR)
    await healthy(rig, "daemonsets", daemonset.id, 3)
    rc = await rig.rc(2, manifest=named("app"), node_selector=SELECTOR, strategy="dynamic")
    await healthy(rig, "rcs", rc.id, 2)
    await stand(rig, rc.id, "n1", "n2")
    return rc, daemonset


async def nothing_left(rig: Rig, rc: ReplicationController, daemonset: DaemonSet) -> None:
    """Both owners take one more node, and no pod has left another."""
    await join(rig, "n4")
    await rig.change(rc.id, replicas_desired=3)

    async def taken() -> bool:
        there = await rig.cluster.pods(daemonset.id)
        return "n4" in [node for node, _ in there] and await rig.count(rc.id) == 3

    await rig.until(taken, "pods on the node that joined")
    await stand(rig, daemonset.id, "n1", "n2", "n3", "n4")
    assert {"n1", "n2"} < {node for node, _ in await rig.cluster.pods(rc.id)}
    assert [
        a.action for a in await rig.cluster.audits() if a.removed or a.action.startswith("transfer")
    ] == []


async def absent(rig: Rig, node: str) -> None:
    """Wait until the farm says that an agent is absent."""

    async def so() -> bool:
        entry = await rig.client.read(rig.keys.status("nodes", node), mode="consistent")
        return entry is not None

    await rig.until(so, f"{node} is absent")


async def test_r21_an_agent_that_is_killed_loses_no_pod_within_the_grace_period(
    consul_dev: str, tmp_path: Path
) -> None:
    """``kill -9``; Consul ends the session; the agent comes back to the processes that it left."""
    async with agents_on(consul_dev, tmp_path) as machine, rig_on(consul_dev) as rig:
        machine.keys = rig.keys
        async with obedient(rig.cluster) as agents:
            agents.deaf.add("n1")
            await join(rig, "n2", "n3")
            await rig.farm("farm", kinds=KINDS)
            async with AgentProcess(machine, FARMD_AGENT__LABELS="zone=a") as agent:
                rc, daemonset = await owners(rig)
                before = await machine.realities()
                await agent.end(signal.SIGKILL)
            await vanish(rig, "n1")
            await absent(rig, "n1")
            await nothing_left(rig, rc, daemonset)
            async with AgentProcess(machine, FARMD_AGENT__LABELS="zone=a"):

                async def back() -> bool:
                    return await machine.presence() is not None

                await rig.until(back, "the agent's return")
                await healthy(rig, "daemonsets", daemonset.id, 4)
                after = await machine.realities()
                assert {name: one.pid for name, one in after.items()} == {
                    name: one.pid for name, one in before.items()
                }
                assert all(alive(one) for one in before.values())


@pytest.mark.parametrize(
    "value",
    [b"\xffgarbage", b'{"node":"n1","version":2,"labels":["zone"]}'],
    ids=["garbage", "a newer agent's"],
)
async def test_r21_a_record_of_an_agent_that_does_not_decode_moves_nothing(
    rig: Rig, agents: Obedient, value: bytes
) -> None:
    await join(rig, "n1", "n2", "n3")
    await rig.farm("farm", kinds=KINDS)
    rc, daemonset = await owners(rig)
    await rig.client.put(rig.keys.agent("n1"), value)
    await nothing_left(rig, rc, daemonset)
    other = await rig.rc(4, name="other", manifest=named("other"), node_selector=SELECTOR)
    await stand(rig, other.id, "n2", "n3", "n4")
    assert await rig.client.read(rig.keys.work("nodes", "n1")) is None


async def test_r21_a_farm_that_never_saw_an_agents_facts_leaves_its_pods_and_places_none_there(
    rig: Rig, agents: Obedient
) -> None:
    await join(rig, "n1", "n2", "n3")
    first = await rig.farm("first", kinds=KINDS)
    rc, daemonset = await owners(rig)
    await first.close()
    await vanish(rig, "n1")
    await rig.farm("second", kinds=KINDS)
    await nothing_left(rig, rc, daemonset)
    other = await rig.rc(4, name="other", manifest=named("other"), node_selector=SELECTOR)
    await stand(rig, other.id, "n2", "n3", "n4")


async def test_r21_what_a_lost_agent_said_is_no_reason_to_leave_its_node_either(
    rig: Rig, agents: Obedient
) -> None:
    """What sends pods off a lost node is ``on_lost``; what its agent says when it is back counts anew."""
    await join(rig, "n1", "n2", "n3")
    await rig.farm("farm", kinds=KINDS, lost_after=0.5)
    rc, daemonset = await owners(rig)
    waits = await rig.rc(
        3, name="waits", manifest=named("waits"), node_selector=SELECTOR, strategy="dynamic", on_lost="wait"
    )
    await stand(rig, waits.id, "n1", "n2", "n3")
    await rig.change(rc.id, on_lost="wait")
    await vanish(rig, "n1")

    async def lost() -> bool:
        entry = await rig.client.read(rig.keys.work("nodes", "n1"), mode="consistent")
        return entry is not None and codec.decode(Work, entry.value, entry.key).lost_since > 0

    await rig.until(lost, "the verdict")
    await nothing_left(rig, rc, daemonset)
    await join(rig, "n1", labels={"zone": "b"})
    await stand(rig, daemonset.id, "n2", "n3", "n4")
    await stand(rig, waits.id, "n2", "n3", "n4")
