"""Why each pod of a rollout stays or goes, from one read of the store."""

from __future__ import annotations

from farmd.commands.mutation import commit
from farmd.replication.commands import RC
from farmd.rollout import noun
from farmd.rollout.commands import explain
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
