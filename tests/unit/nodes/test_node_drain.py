"""Drains: stages, deadlines, what keeps them, and that any farm can go on with one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farmd.nodes import facts
from store.daemonsets import DaemonSet
from store.nodes import Drain, Node
from store.rcs import ReplicationController
from store.status import Status
from tests.node_farms import KEYS, Fleet, fleet_of

NODES = ("n1", "n2", "n3", "n4", "n5")


async def controller(fleet: Fleet, reason: str = "", **fields: object) -> None:
    rc = ReplicationController(id="c1", name="web", manifest="m", replicas_desired=1, **fields)  # type: ignore[arg-type]
    await fleet.put(KEYS.record("rcs", "c1"), rc)
    await fleet.put(KEYS.status("rcs", "c1"), Status(state="blocked", reason=reason))


async def test_a_drain_waits_for_the_pods_then_for_the_systems_then_it_is_done() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.place("n1", "logs", system=True)
        await fleet.drain("n1")
        status = await fleet.status("n1")
        assert status is not None
        assert (await fleet.stage("n1"), status.state) == ("pods", "draining")
        assert (status.left, status.left_system) == (2, 1)
        await fleet.unplace("n1", "web")
        assert await fleet.stage("n1") == "system"
        await fleet.unplace("n1", "logs")
        assert await fleet.stage("n1") == "done"
        status = await fleet.status("n1")
        assert status is not None
        assert (status.state, status.left) == ("drained", 0)
        assert (await fleet.node("n1")).cordoned
        assert [(r.after["drain"], r.reason) for r in await fleet.audits("node.drain")] == [
            ("system", "all pods left but the system's"),
            ("done", "all pods left"),
        ]


async def test_a_pod_that_goes_while_a_farm_takes_the_drain_over_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, gone, reason = asyncio.Event(), asyncio.Event(), facts.reason

    async def late(*known: Any) -> str:
        asked.set()
        await gone.wait()
        return await reason(*known)

    async with fleet_of(*NODES) as fleet:
        await fleet.place("n1", "web")
        await fleet.drain("n1")
        monkeypatch.setattr(facts, "reason", late)
        await fleet.start("a")
        await asked.wait()
        await fleet.unplace("n1", "web")
        gone.set()
        await fleet.clock.advance(5.0)
        assert await fleet.stage("n1") == "done"


async def test_a_pod_that_is_still_stopping_is_not_gone() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.drain("n1")
        await fleet.client.delete(KEYS.intent("n1", "web"))
        await fleet.clock.advance(12)
        assert await fleet.stage("n1") == "pods"
        await fleet.client.delete(KEYS.reality("n1", "web"))
        await fleet.clock.advance(2)
        assert await fleet.stage("n1") == "done"


async def test_a_lost_node_is_drained_once_nothing_shall_run_there_any_more() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.drain("n1")
        await fleet.leave("n1")
        await fleet.client.delete(KEYS.intent("n1", "web"))
        await fleet.clock.advance(30)
        assert await fleet.stage("n1") == "pods"
        await fleet.clock.advance(60)
        assert await fleet.lost("n1")
        assert await fleet.stage("n1") == "done"
        assert [r.reason for r in await fleet.audits("node.drain")] == [
            "no pods are left to run there, and its agent is given up"
        ]


@pytest.mark.parametrize("force", [False, True])
async def test_past_its_deadline_a_drain_says_so_and_goes_on(force: bool) -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await controller(fleet, "would fall below its health floor")
        await fleet.place("n1", "web")
        await fleet.drain("n1", deadline=fleet.clock.now() + 30, force=force)
        await fleet.clock.advance(20)
        assert not farm.alerts.fired
        await fleet.clock.advance(20)
        drain = (await fleet.node("n1")).drain
        assert drain is not None
        assert (drain.stage, drain.overdue, drain.ignores_floor) == ("pods", True, force)
        assert farm.alerts.firing["node_drain_n1"].urgency == "low"
        status = await fleet.status("n1")
        assert status is not None
        assert status.waiting == ["rc/web: would fall below its health floor"]
        assert "deadline" in status.reason
        assert ("floors are ignored" in status.reason) is force
        assert [r.reason for r in await fleet.audits("node.drain")] == ["past its deadline, with 1 pod left"]
        await fleet.unplace("n1", "web")
        assert await fleet.stage("n1") == "done"
        assert not farm.alerts.firing


@pytest.mark.parametrize("first", ["heir", "undrain"])
async def test_an_alert_of_a_late_drain_ends_with_the_drain_whoever_sent_it(first: str) -> None:
    async with fleet_of(*NODES) as fleet:
        former = await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.drain("n1", deadline=fleet.clock.now() + 5)
        await fleet.clock.advance(10)
        await fleet.end("a")
        assert "node_drain_n1" in former.alerts.firing
        heir = await fleet.start("b", alerts=former.alerts) if first == "heir" else None
        await fleet.put(KEYS.node("n1"), Node())
        if heir is None:
            await fleet.start("b", alerts=former.alerts)
        await fleet.clock.advance(2)
        assert not former.alerts.firing
        assert len(former.alerts.fired) == 1
        assert await fleet.status("n1") is None


@pytest.mark.parametrize("end", ["crash", "end"])
async def test_a_drain_goes_on_where_a_farm_left_it(end: str) -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.place("n1", "logs", system=True)
        await fleet.drain("n1", deadline=fleet.clock.now() + 3600)
        await fleet.unplace("n1", "web")
        assert await fleet.stage("n1") == "system"
        await (fleet.crash if end == "crash" else fleet.end)("a")
        await fleet.unplace("n1", "logs")
        assert await fleet.stage("n1") == "system"
        await fleet.start("b")
        await fleet.clock.advance(40)
        assert await fleet.stage("n1") == "done"


async def test_a_drain_ended_while_no_farm_ran_leaves_no_status_behind() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.drain("n1")
        await fleet.end("a")
        await fleet.put(KEYS.node("n1"), Node())
        await fleet.start("b")
        await fleet.clock.advance(3)
        assert await fleet.status("n1") is None


async def test_r20_an_answer_without_the_nodes_sentinel_finishes_no_drain() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.client.delete(KEYS.sentinel(KEYS.intents("n1")))
        await fleet.drain("n1")
        await fleet.clock.advance(60)
        assert await fleet.stage("n1") == "pods"
        status = await fleet.status("n1")
        assert status is not None
        assert "proves nothing" in status.waiting[0]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"disabled": True}, "rc/web: disabled, so its pods stay"),
        ({"managed_by": "rollouts/r1", "taken": True}, "rc/web: taken by rollouts/r1"),
        (None, "c1: no record has that id, so no farm moves its pods"),
    ],
)
async def test_a_drain_names_what_keeps_the_pods(fields: dict[str, object] | None, text: str) -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        if fields is not None:
            await controller(fleet, **fields)
        await fleet.place("n1", "web")
        await fleet.drain("n1")
        status = await fleet.status("n1")
        assert status is not None
        assert status.waiting == [text]


async def test_a_drain_names_the_daemon_set_that_keeps_a_pod() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        record = DaemonSet(id="c1", name="logs", manifest="m")
        await fleet.put(KEYS.record("daemonsets", "c1"), record)
        await fleet.put(KEYS.status("daemonsets", "c1"), {"reason": "waits for its turn"})
        await fleet.place("n1", "web")
        await fleet.drain("n1")
        status = await fleet.status("n1")
        assert status is not None
        assert status.waiting == ["daemonset/logs: waits for its turn"]


@pytest.mark.parametrize("at", ["/v1/kv/farmd/nodes/n1", "/v1/txn"])
async def test_r13_an_undrain_that_comes_meanwhile_wins(at: str) -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.place("n1", "web")
        await fleet.drain("n1")

        async def first(request: object) -> None:
            if getattr(request, "path", "") == at:
                farm.faults.before = None
                await fleet.put(KEYS.node("n1"), Node(labels={"a": "b"}))

        farm.faults.before = first
        await fleet.unplace("n1", "web")
        await fleet.clock.advance(10)
        assert farm.faults.before is None, "it never came to that"
        assert await fleet.node("n1") == Node(labels={"a": "b"})
        assert not await fleet.audits("node.drain")


async def test_unknown_fields_of_a_nodes_record_survive_a_drain() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.client.put(KEYS.node("n1"), b'{"drain": {}, "from_the_future": 1, "cordoned": true}')
        await fleet.clock.advance(5)
        entry = await fleet.client.read(KEYS.node("n1"))
        assert entry is not None
        assert b'"from_the_future":1' in entry.value
        assert (await fleet.node("n1")).drain == Drain("done")
