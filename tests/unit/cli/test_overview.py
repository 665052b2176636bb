"""What people are shown of pods, farms and waits: no more than anybody knows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.pod import locate
from farmd.cli.settings import Settings
from farmd.commands.mutation import Call, commit
from farmd.commands.noun import explain
from farmd.commands.waiting import Spells, convergence, look
from farmd.overview.owners import DELETING, OUTDATED
from farmd.replication.commands import RC
from farmd.runtime.errors import WaitTimeout
from store import codec
from store.farms import Member
from store.nodes import Agent, Drain, Node, NodeStatus, NodeStore
from store.pods import Pod
from store.rcs import ReplicationController, ReplicationControllerStore
from store.reality import Health, Intent, Reality
from store.status import Status
from store.work import Work
from tests.people import KEYS, created, hello, person, place


async def row_of(call: Call, rc_id: str) -> overview.Row[ReplicationController]:
    return await overview.row(call.client, KEYS, ReplicationControllerStore(call.client, KEYS), rc_id)


async def running(call: Call, rc_id: str, node: str = "n1") -> None:
    """A pod that its node's agent called healthy."""
    sha = (await ReplicationControllerStore(call.client, KEYS).get(rc_id)).record.manifest
    await call.client.put(KEYS.pod(rc_id, node, "hello"), codec.encode(Pod(sha)))
    await call.client.put(KEYS.intent(node, "hello"), codec.encode(Intent(sha, rc_id)))
    index, _ = await call.client.get(KEYS.intent(node, "hello"))
    said = Reality(manifest=sha, owner=rc_id, intent=index, health=Health(state="passing"))
    await call.client.put(KEYS.reality(node, "hello"), codec.encode(said))


async def test_r21_of_a_pod_whose_agent_is_absent_nobody_knows_how_it_is() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await running(call, rc_id)
        (row,) = (await overview.pods(call.client, KEYS)).rows
        assert (row.phase, row.health, row.healthy) == ("running", "unknown", False)
        assert row.reason == "its node's agent is absent"
        await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
        (row,) = (await overview.pods(call.client, KEYS)).rows
        assert (row.health, row.healthy, row.reason) == ("passing", True, "")


async def test_r22_healthy_means_the_start_that_acted_on_the_intent() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await running(call, rc_id)
        await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
        key = KEYS.intent("n1", "hello")
        _, entry = await call.client.get(key)
        assert entry is not None
        await call.client.put(key, entry.value + b" ")
        (row,) = (await overview.pods(call.client, KEYS)).rows
        assert (row.health, row.healthy) == ("passing", False)


async def test_r22_a_wait_trusts_an_owner_that_reported_this_very_record_as_converged() -> None:
    """Without such a report it measures by itself; this clock stands still, so that it never gets there."""
    async with person() as call:
        rc_id = await created(call, replicas=1, min_healthy_time=10)
        await running(call, rc_id)
        await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
        index = (await row_of(call, rc_id)).index
        for record, converged in ((index - 1, False), (index, True)):
            status = Status(state="converged", desired=1, placed=1, healthy=1, record=record)
            await call.client.put(KEYS.status("rcs", rc_id), codec.encode(status))
            now = await look(call, RC, rc_id, Spells(call.clock))
            assert (now.healthy, now.converged) == (1, converged)


async def test_an_owner_is_called_the_same_wherever_its_pods_are_listed() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await running(call, rc_id)
        record = (await row_of(call, rc_id)).record
        alone = (await overview.pods(call.client, KEYS, record)).rows
        assert alone == (await overview.pods(call.client, KEYS)).rows


async def test_pods_are_listed_by_node_and_instance_whoever_owns_them() -> None:
    async with person() as call:
        zoo, other = await created(call, name="zoo", pod_id="ape"), await created(call)
        for owner, instance in ((zoo, "ape"), (other, "hello")):
            for node in ("n2", "n1") if owner == zoo else ("n10", "n1"):
                await place(call, owner, node, instance)
        rows = (await overview.pods(call.client, KEYS)).rows
        assert [(row.node, row.instance, row.owner_name) for row in rows] == [
            ("n1", "ape", "zoo"),
            ("n1", "hello", "hello"),
            ("n10", "hello", "hello"),
            ("n2", "ape", "zoo"),
        ]


async def test_an_explanation_names_the_owner_that_holds_the_instance() -> None:
    async with person() as call:
        await call.client.put(KEYS.agent("n1"), codec.encode(Agent(node="n1", version="1")))
        holder, asking = await created(call, name="zoo"), await created(call)
        await place(call, holder, "n1")
        record = (await row_of(call, asking)).record
        (verdict,) = (await explain(call, RC, record))[0][1].verdicts
        told = {reason.code: reason.text for reason in verdict.reasons}
        assert told["held"] == "instance 'hello' belongs to another owner, zoo"


async def test_r21_an_explanation_knows_the_nodes_that_farms_gave_up() -> None:
    async with person() as call:
        await call.client.put(KEYS.node("n1"), codec.encode(Node()))
        record = (await row_of(call, await created(call))).record
        for since, code in ((0.0, "agent_unknown"), (5.0, "agent_lost")):
            await call.client.put(KEYS.work("nodes", "n1"), codec.encode(Work(lost_since=since)))
            (verdict,) = (await explain(call, RC, record))[0][1].verdicts
            assert code in {reason.code for reason in verdict.reasons}


async def test_a_wait_that_ends_names_the_pods_that_it_waited_for() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await running(call, rc_id)
        await call.client.put(KEYS.farm("one"), codec.encode(Member(id="one", version="1")))
        await call.client.put(KEYS.lock("rcs", rc_id), b"farm/one/n")
        with pytest.raises(WaitTimeout) as ended:
            await convergence(call, RC, rc_id, 0, lambda _: None)
        assert "not healthy: n1/hello running (its node's agent is absent); " in ended.value.hint


async def test_a_farm_is_listed_with_what_it_holds() -> None:
    async with person() as call:
        for name in ("one", "two"):
            await call.client.put(KEYS.farm(name), codec.encode(Member(id=name, version="1")))
        for kind, item in (("rcs", "ab"), ("rcs", "cd"), ("nodes", "n1")):
            await call.client.put(KEYS.lock(kind, item), b"farm/one/n")
        await call.client.put(KEYS.mutation_lock("rcs", "ab"), b"user/two/n")
        rows = await overview.farm_rows(call.client, KEYS)
        assert [(row.member.id, row.items) for row in rows] == [("one", {"nodes": 1, "rcs": 2}), ("two", {})]


async def test_a_status_of_an_earlier_record_is_shown_as_outdated() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await call.client.put(KEYS.lock("rcs", rc_id), b"farm/one/n")
        index = (await row_of(call, rc_id)).index
        said = Status(state="converged", reason="all is well", record=index)
        await call.client.put(KEYS.status("rcs", rc_id), codec.encode(said))
        row = await row_of(call, rc_id)
        assert (row.state, row.reason) == ("converged", "all is well")
        newer = RC.file.parse(hello(replicas=0, pod_command=["sleep", "77"]), "test")
        await commit(call, await RC.update(call, newer, now=True))
        (row,) = (await overview.owners(call.client, KEYS))["rcs"].rows
        assert (row.state, row.reason) == ("pending", OUTDATED)
        assert (await look(call, RC, rc_id, Spells(call.clock))).state == "pending"


async def test_a_controller_whose_rollout_does_not_decode_is_blocked_and_says_so() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await call.client.put(KEYS.lock("rcs", rc_id), b"farm/one/n")
        stored = await RC.records(call.client, KEYS).get(rc_id)
        managed = replace(stored.record, managed_by="rollouts/r1")
        await call.client.put(KEYS.record("rcs", rc_id), codec.encode(managed))
        index = (await row_of(call, rc_id)).index
        said = Status(state="converged", record=index)
        await call.client.put(KEYS.status("rcs", rc_id), codec.encode(said))
        await call.client.put(KEYS.record("rollouts", "r1"), b"{")
        (listed,) = (await overview.owners(call.client, KEYS))["rcs"].rows
        for row in (listed, await row_of(call, rc_id)):
            assert row.state == "blocked"
            assert row.reason.startswith("managed by rollouts/r1, which does not decode: ")


@pytest.mark.parametrize(
    ("said", "shown"), [("", DELETING), ("2 processes still run on n1", "2 processes still run on n1")]
)
async def test_a_deletion_under_way_is_its_own_reason(said: str, shown: str) -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await call.client.put(KEYS.lock("rcs", rc_id), b"farm/one/n")
        await place(call, rc_id, "n1")

        async def report(reason: str) -> None:
            status = Status(state="converged", reason=reason, record=(await row_of(call, rc_id)).index)
            await call.client.put(KEYS.status("rcs", rc_id), codec.encode(status))

        await report("all is well")
        await commit(call, await RC.delete(call, rc_id, cascade=True))
        row = await row_of(call, rc_id)
        assert (row.state, row.reason) == ("deleting", DELETING)
        await report(said)
        row = await row_of(call, rc_id)
        assert (row.state, row.reason) == ("deleting", shown)


async def test_a_nodes_status_of_an_earlier_record_is_shown_as_outdated() -> None:
    async with person() as call:
        node, nodes = Node(drain=Drain(since=1.0)), NodeStore(call.client, KEYS)
        await call.client.put(KEYS.node("n1"), codec.encode(node))
        view = await nodes.get("n1")
        assert view.node is not None
        said = NodeStatus(state="draining", reason="past its deadline", record=view.node.index)
        await call.client.put(KEYS.status("nodes", "n1"), codec.encode(said))
        assert overview.node_row(view, await nodes.condition("n1"), 1).reason == "past its deadline"
        await call.client.put(KEYS.node("n1"), codec.encode(Node(drain=Drain(since=2.0))))
        assert overview.node_row(await nodes.get("n1"), await nodes.condition("n1"), 1).reason == OUTDATED


async def test_w6_a_key_that_no_record_can_have_hides_nothing() -> None:
    """Anybody may write keys, for example with the consul CLI."""
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await running(call, rc_id)
        await call.client.put(KEYS.node("n1"), codec.encode(Node()))
        strays = {
            "intent": Intent("m", rc_id),
            "reality": Reality(manifest="m", owner=rc_id),
            "pods": Pod("m"),
        }
        for family, record in strays.items():
            for below in ("stray", "a/b/c/d/e"):
                await call.client.put(f"{KEYS.tree(family)}{below}", codec.encode(record))
        found = await overview.pods(call.client, KEYS)
        assert [(row.node, row.instance) for row in found.rows] == [("n1", "hello")]
        assert len(found.broken) == 6
        assert [(row.name, row.pods) for row in (await overview.nodes(call.client, KEYS)).rows] == [("n1", 1)]
        assert await locate(Invocation(Settings(), call), "hello") == ("n1", "hello")
