"""Why each pod of a rollout stays or goes, from one read of the store."""

from __future__ import annotations

import msgspec

from farmd.commands.mutation import commit
from farmd.replication.commands import RC
from farmd.rollout import noun
from farmd.tables.rollouts import explain
from store import codec
from store.nodes import Agent, Drain, Node
from store.reality import Health, Intent, Reality
from store.rollouts import KIND, RolloutState
from store.work import Work
from tests.people import KEYS, hello, person, place


async def test_each_pod_has_its_fate_its_class_and_the_reason() -> None:
    async with person() as call:
        client = call.client
        fields = {"replicas": 5, "max_unavailable": 2, "rollout": {"stages": ["100%"]}}
        await commit(call, await RC.create(call, RC.file.parse(hello(**fields), "x")))
        again = RC.file.parse(hello(**fields, pod_command=["sleep", "8"]), "x")
        await commit(call, await RC.update(call, again, now=False))
        rollout = (await noun.ROLLOUT.records(call.client, call.keys).find("hello")).record
        agents = {"n1": True, "n2": True, "n3": True, "n4": True, "n5": False}
        for node, present in agents.items():
            drain = Drain() if node == "n4" else None
            await client.put(KEYS.node(node), codec.encode(Node(drain=drain)))
            if present:
                await client.put(KEYS.agent(node), codec.encode(Agent(node=node, version="1")))
        for node in ("n1", "n2", "n3", "n4", "n5"):
            await place(call, rollout.old, node, instance="hello")
            sha = rollout.from_manifest
            pod = KEYS.pod(rollout.old, node, "hello")
            await client.put(pod, b'{"manifest": "%s"}' % sha.encode())
            await client.put(KEYS.intent(node, "hello"), codec.encode(Intent(sha, rollout.old)))
            health = Health(state="critical" if node == "n3" else "passing")
            reality = Reality(manifest=sha, owner=rollout.old, phase="running", health=health, intent=10**6)
            await client.put(KEYS.reality(node, "hello"), codec.encode(reality))
        lost = codec.encode(Work(lost_since=1.0))
        await client.put(KEYS.work("nodes", "n2"), lost)
        await client.put(
            KEYS.work(KIND, rollout.id), codec.encode(Work(rollout=RolloutState(phase="moving")))
        )
        rows = await explain(call, "hello")
        assert [(row.side, row.pod, row.fate, row.kind) for row in rows] == [
            ("old", "n2/hello", "goes", "lost"),
            ("old", "n3/hello", "goes", "idle"),
            ("old", "n4/hello", "goes", "must leave"),
            ("old", "n1/hello", "goes", "serving"),
            ("old", "n5/hello", "goes", "unknown"),
            ("new", "(1 elsewhere)", "comes", "missing"),
        ]
        reasons = {row.pod: row.reason for row in rows}
        assert reasons["n2/hello"] == "its node is lost"
        assert reasons["n1/hello"] == "floor 3 > 2 old + 0 new: nothing may leave"
        assert "found no place" in reasons["(1 elsewhere)"]


async def test_r14_a_pod_of_a_superseded_version_is_not_what_the_floor_waits_for() -> None:
    async with person() as call:
        fields = {"replicas": 3, "rollout": {"stages": ["100%"], "minimum": 2}}
        await commit(call, await RC.create(call, RC.file.parse(hello(**fields), "x")))
        again = RC.file.parse(hello(**fields, pod_command=["sleep", "8"]), "x")
        await commit(call, await RC.update(call, again, now=False))
        stored = await noun.ROLLOUT.records(call.client, call.keys).find("hello")
        begun = msgspec.structs.replace(stored.record, superseded=["e" * 64])
        moving = codec.encode(Work(rollout=RolloutState(phase="moving", superseded=1)))
        writes = {stored.key: codec.encode(begun), KEYS.work(KIND, begun.id): moving}
        pods = {
            "n1": (begun.old, begun.from_manifest, "passing"),
            "n2": (begun.old, begun.from_manifest, "passing"),
            "n3": (begun.new, "e" * 64, "critical"),
            "n4": (begun.new, begun.to_manifest, "critical"),
        }
        for node, (owner, sha, health) in pods.items():
            await place(call, owner, node, instance="hello")
            reality = Reality(manifest=sha, owner=owner, health=Health(state=health), intent=10**6)  # type: ignore[arg-type]
            writes |= {
                KEYS.agent(node): codec.encode(Agent(node=node, version="1")),
                KEYS.pod(owner, node, "hello"): b'{"manifest": "%s"}' % sha.encode(),
                KEYS.intent(node, "hello"): codec.encode(Intent(sha, owner)),
                KEYS.reality(node, "hello"): codec.encode(reality),
            }
        for key, value in writes.items():
            await call.client.put(key, value)
        reasons = {row.pod: row.reason for row in await explain(call, "hello")}
        assert "until n4/hello is available" in reasons["n1/hello"]
