"""What people ask of a drain: what is written, what is shown before, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from farmd import overview
from farmd.commands.mutation import Call, commit
from farmd.nodes import commands
from farmd.nodes.commands import Look
from farmd.runtime.errors import WaitTimeout
from store import codec, manifests, operations
from store.daemonsets import DaemonSet
from store.errors import Conflict, InputInvalid, NotFound
from store.manifests import Manifest
from store.nodes import Agent, Drain, Node, NodeStatus, NodeStore
from store.reality import Intent
from store.registration import register_node
from store.work import Work
from tests.people import KEYS, created, person

HOUR = 3600.0


async def record(call: Call, name: str = "web1") -> Node:
    return (await NodeStore(call.client, KEYS).get(name)).record


async def stand(call: Call, instance: str, owner: str, *, system: bool = False, node: str = "web1") -> None:
    body = manifests.canonical(Manifest(id=instance, command=["x"], system=system))
    sha = manifests.digest(body)
    await call.client.transaction(
        [
            operations.put(KEYS.manifest(sha), body),
            operations.put(KEYS.intent(node, instance), codec.encode(Intent(sha, owner))),
        ]
    )


async def test_a_drain_cordons_and_says_who_asked_until_when_and_why() -> None:
    async with person(reason="new disk") as call:
        await register_node(call.client, KEYS, "web1")
        mutation = await commands.drain(call, "web1", HOUR)
        assert mutation.change.details == ("no pods run there",)
        assert not mutation.change.destructive
        await commit(call, mutation)
        now = call.clock.now()
        assert await record(call) == Node(
            cordoned=True,
            cordon_reason="new disk",
            drain=Drain(since=now, deadline=now + HOUR, by=call.actor, reason="new disk"),
        )


async def test_a_repeated_drain_sets_a_new_deadline_and_keeps_the_stage() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        standing = Drain("system", since=5.0, deadline=9.0, overdue=True)
        await call.client.put(KEYS.node("web1"), codec.encode(Node(cordoned=True, drain=standing)))
        await commit(call, await commands.drain(call, "web1", HOUR))
        drain = (await record(call)).drain
        assert drain is not None
        assert (drain.stage, drain.since, drain.overdue) == ("system", 5.0, False)
        assert drain.deadline == call.clock.now() + HOUR


async def test_a_node_that_was_drained_is_drained_anew_from_the_start() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await call.client.put(KEYS.node("web1"), codec.encode(Node(cordoned=True, drain=Drain("done"))))
        await commit(call, await commands.drain(call, "web1", HOUR))
        assert (await record(call)).drain == Drain(
            since=call.clock.now(), deadline=call.clock.now() + HOUR, by=call.actor
        )


@pytest.mark.parametrize("cordoned", [False, True])
async def test_undrain_leaves_the_cordon_that_was_there_before(cordoned: bool) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        before = Node(cordoned=cordoned, cordon_reason="old" if cordoned else "")
        await call.client.put(KEYS.node("web1"), codec.encode(before))
        await commit(call, await commands.drain(call, "web1", HOUR))
        await commit(call, await commands.drain(call, "web1", 2 * HOUR))
        await commit(call, await commands.undrain(call, "web1"))
        assert await record(call) == before
        assert not (await commands.undrain(call, "web1")).needed


async def test_uncordon_ends_a_drain_too() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await commit(call, await commands.cordon(call, "web1"))
        await commit(call, await commands.drain(call, "web1", HOUR))
        await commit(call, await commands.uncordon(call, "web1"))
        assert await record(call) == Node()


async def test_force_goes_into_the_record_needs_a_reason_and_is_asked_for() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        forced = dataclasses.replace(call, force=True)
        with pytest.raises(InputInvalid, match="reason"):
            await commands.drain(forced, "web1", HOUR)
        mutation = await commands.drain(dataclasses.replace(forced, reason="fire"), "web1", HOUR)
        assert mutation.change.destructive
        await commit(call, mutation)
        drain = (await record(call)).drain
        assert drain is not None
        assert (drain.force, drain.ignores_floor) == (True, False)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 31 * 86400.0])
async def test_a_deadline_that_is_none_is_refused(seconds: float) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        with pytest.raises(InputInvalid, match="deadline"):
            await commands.drain(call, "web1", seconds)


async def test_a_mistyped_node_is_not_drained() -> None:
    async with person() as call:
        with pytest.raises(NotFound):
            await commands.drain(call, "web1", HOUR)


async def test_what_would_move_and_what_would_stay_is_said_before() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        web = await created(call)
        logs = await created(call, name="logs", disabled=True)
        await stand(call, "hello", web)
        await stand(call, "hello~1", web)
        await stand(call, "quiet", logs)
        await stand(call, "node-exporter", web, system=True)
        await stand(call, "orphan", "ffff")
        everywhere = DaemonSet(id="dddd", name="metrics", manifest="m")
        await call.client.put(KEYS.record("daemonsets", "dddd"), codec.encode(everywhere))
        await stand(call, "metrics", "dddd")
        details = (await commands.drain(call, "web1", HOUR)).change.details
        assert sorted(details) == sorted(
            [
                "moves: hello, hello~1 (rc/hello)",
                "goes: metrics (daemonset/metrics)",
                "stays: quiet (rc/logs: disabled, so its pods stay)",
                "stays: orphan (ffff: no record has that id, so no farm moves its pods)",
                "moves last, a system pod: node-exporter (rc/hello)",
            ]
        )
        assert details[-1].startswith("moves last")


async def test_waiting_reports_progress_and_ends_with_the_drain() -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await stand(call, "hello", "c1")
        await commit(call, await commands.drain(call, "web1", HOUR))
        looks: list[Look] = []

        with pytest.raises(WaitTimeout, match="1 pod left") as late:
            await commands.drained(call, "web1", 3, looks.append)
        assert "no farm claims nodes" in late.value.hint
        assert len(looks) == 1
        await call.client.put(KEYS.node("web1"), codec.encode(Node(drain=Drain("done"))))
        await commands.drained(call, "web1", 3, looks.append)
        assert [commands.describe(look) for look in looks] == ["1 pod left", "drained"]
        await call.client.put(KEYS.node("web1"), codec.encode(Node()))
        with pytest.raises(Conflict, match="ended"):
            await commands.drained(call, "web1", 3, looks.append)


@pytest.mark.parametrize(
    ("record", "present", "work", "status", "state"),
    [
        (Node(), True, None, None, "ready"),
        (Node(), False, None, None, "absent"),
        (Node(), False, Work(lost_since=5.0), None, "lost"),
        (Node(), True, Work(lost_since=5.0), None, "ready"),  # it is back, and the verdict about to go
        (Node(cordoned=True), True, None, None, "ready,cordoned"),
        (
            Node(cordoned=True, drain=Drain()),
            True,
            None,
            NodeStatus(state="draining", left=3),
            "ready,draining",
        ),
        (Node(cordoned=True, drain=Drain("done")), False, None, None, "absent,drained"),
    ],
)
async def test_states_of_nodes(
    record: Node, present: bool, work: Work | None, status: NodeStatus | None, state: str
) -> None:
    async with person() as call:
        await register_node(call.client, KEYS, "web1")
        await call.client.put(KEYS.node("web1"), codec.encode(record))
        if present:
            await call.client.put(KEYS.agent("web1"), codec.encode(Agent(node="web1", version="1")))
        if work is not None:
            await call.client.put(KEYS.work("nodes", "web1"), codec.encode(work))
        if status is not None:
            await call.client.put(KEYS.status("nodes", "web1"), codec.encode(status))
        (row,) = (await overview.nodes(call.client, KEYS)).rows
        assert row.state == state
        assert row.left == (status.left if status is not None else 0)
