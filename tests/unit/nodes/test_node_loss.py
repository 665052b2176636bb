"""Agent loss: one verdict after a grace period that only what a farm itself saw can use up (R21)."""

from __future__ import annotations

import heapq

from farmd import overview
from farmd.nodes.facts import NOTICE_SECONDS
from farmd.tables import nodes as tables
from store import codec
from store.errors import StoreUnavailable
from store.failsafe import Failsafe
from store.nodes import Agent, Node, NodeStore
from tests.node_farms import GRACE, KEYS, Fleet, base64_of, fleet_of


async def cut(*_: object) -> None:
    """A wire that carries nothing."""
    raise StoreUnavailable("the wire is cut")


def stand_still(fleet: Fleet, seconds: float) -> None:
    """Time passes, and nothing in this process runs meanwhile: every timer is late."""
    clock = fleet.clock
    clock._seconds += seconds
    clock._timers = [(max(due, clock._seconds), order, over) for due, order, over in clock._timers]
    heapq.heapify(clock._timers)


NODES = ("n1", "n2", "n3", "n4", "n5")


async def test_r21_an_absent_agent_is_given_up_after_the_grace_period_and_not_before() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        gone = fleet.clock.now()
        await fleet.clock.advance(GRACE - 1)
        assert not await fleet.lost("n1")
        await fleet.clock.advance(3)
        work = await fleet.work("n1")
        assert gone + GRACE <= work.lost_since <= gone + GRACE + 3
        assert gone - 1 <= work.absent_since <= gone + 1
        assert "node_lost_n1" in farm.alerts.firing
        assert [await fleet.lost(name) for name in NODES[1:]] == [False] * 4


async def test_the_labels_of_an_absent_agent_are_told_until_it_is_back() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.arrive("n1", labels={"rack": "a"})
        await fleet.leave("n1")
        for seconds, state in ((NOTICE_SECONDS + 2, "absent"), (GRACE, "lost")):
            await fleet.clock.advance(seconds)
            status = await fleet.status("n1")
            assert status is not None
            assert (status.state, status.labels) == (state, {"rack": "a"})
        # People see them, and another farm, which never saw the agent, tells them on.
        nodes = NodeStore(fleet.client, KEYS)
        view, condition = await nodes.get("n1"), await nodes.condition("n1")
        told = dict(tables.facts(view, overview.node_row(view, condition, 0), 0.0))
        assert (told["Labels"], told["Last known"]) == ("", "rack=a (stated by its agent)")
        await fleet.close()
        await fleet.start("b")
        await fleet.put(KEYS.node("n1"), Node(cordoned=True))
        await fleet.clock.advance(GRACE)
        status = await fleet.status("n1")
        assert status is not None
        assert status.labels == {"rack": "a"}


async def test_r21_an_agent_that_is_back_takes_the_verdict_back() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        status = await fleet.status("n1")
        assert status is not None
        assert status.state == "lost"
        await fleet.arrive("n1")
        await fleet.clock.advance(2)
        assert not await fleet.lost("n1")
        assert await fleet.status("n1") is None
        assert not farm.alerts.firing
        assert [r.after for r in await fleet.audits("node.back")] == [{"lost": False}]


async def test_r21_several_farms_come_to_one_verdict() -> None:
    async with fleet_of(*NODES) as fleet:
        for name in ("a", "b", "c"):
            await fleet.start(name)
        await fleet.clock.advance(5)
        assert sorted(item for farm in fleet.farms.values() for item in farm.owned) == list(NODES)
        await fleet.leave("n1", "n2")
        await fleet.clock.advance(GRACE + 5)
        assert sorted(r.name for r in await fleet.audits("node.lost")) == ["n1", "n2"]


async def test_r21_a_flapping_agent_is_never_given_up() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        for _ in range(5):
            await fleet.leave("n1")
            await fleet.clock.advance(GRACE - 2)
            await fleet.arrive("n1")
            await fleet.clock.advance(0.5)
        assert not await fleet.audits("node.lost")


async def test_r21_a_farms_restart_does_not_shorten_the_grace() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE - 5)
        await fleet.end("a")
        await fleet.start("a")
        await fleet.clock.advance(GRACE - 5)
        assert not await fleet.lost("n1")
        await fleet.clock.advance(8)
        assert await fleet.lost("n1")


async def test_r21_another_farm_that_saw_it_too_need_not_wait_again() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.start("b")
        await fleet.clock.advance(5)
        await fleet.leave("n1")
        owner = next(name for name, farm in fleet.farms.items() if "n1" in farm.owned)
        await fleet.clock.advance(GRACE / 2)
        await fleet.crash(owner)
        await fleet.clock.advance(GRACE / 2 + 5)
        assert await fleet.lost("n1")


async def test_r21_time_in_which_nothing_was_seen_does_not_count() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE - 10)
        farm.faults.before = farm.faults.after = cut
        await fleet.clock.advance(20)
        farm.faults.before = farm.faults.after = None
        await fleet.clock.advance(GRACE - 10)
        assert not await fleet.lost("n1")
        await fleet.clock.advance(20)
        assert await fleet.lost("n1")


async def test_r21_time_in_which_the_process_stood_still_does_not_count() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a", ttl=60.0)
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE - 15)
        stand_still(fleet, 16)
        await fleet.clock.advance(GRACE - 10)
        assert not await fleet.lost("n1")
        await fleet.clock.advance(20)
        assert await fleet.lost("n1")


async def test_farms_that_share_controllers_by_selectors_share_all_nodes() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a", selector="team=web")
        await fleet.start("b", selector="team=db")
        await fleet.clock.advance(10)
        owned = [farm.owned for farm in fleet.farms.values()]
        assert sorted(item for items in owned for item in items) == list(NODES)
        assert all(owned)


async def test_r21_the_verdict_stands_while_another_farm_takes_over_and_nothing_is_written_again() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        before = await fleet.work("n1")
        await fleet.end("a")
        later = await fleet.start("b")
        await fleet.clock.advance(2 * GRACE)
        assert await fleet.work("n1") == before
        assert len(await fleet.audits("node.lost")) == 1
        assert not later.alerts.fired
        await fleet.arrive("n1")
        await fleet.clock.advance(2)
        assert not await fleet.lost("n1")


async def test_r21_an_agent_that_is_back_by_the_time_of_the_verdict_is_not_given_up() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE - 2)

        async def back_just_now(request: object) -> None:
            if b"lost_since" in base64_of(request):
                farm.faults.before = None
                await fleet.put(KEYS.agent("n1"), Agent(node="n1", version="1"))

        farm.faults.before = back_just_now
        await fleet.clock.advance(10)
        assert farm.faults.before is None, "no verdict was sent"
        assert not await fleet.audits("node.lost")
        assert not farm.alerts.fired


async def test_r19_a_mass_loss_freezes_and_nobody_is_given_up() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1", "n2", "n3", "n4")
        await fleet.clock.advance(3 * GRACE)
        assert [await fleet.lost(name) for name in NODES] == [False] * 5
        entry = await fleet.client.read(KEYS.failsafe("nodes"))
        assert entry is not None
        assert "agents" in codec.decode(Failsafe, entry.value, entry.key).evidence
        assert "failsafe_more_than_50_of_the_nodes_are_absent" in farm.alerts.firing
        # They come back but for one: that one is given up once the freeze is over.
        await fleet.arrive("n2", "n3", "n4")
        await fleet.clock.advance(200)
        assert [await fleet.lost(name) for name in NODES] == [True, False, False, False, False]


async def test_r19_nodes_that_were_drained_may_be_switched_off() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        for name in ("n1", "n2", "n3"):
            await fleet.drain(name)
            assert await fleet.stage(name) == "done"
        await fleet.leave("n1", "n2", "n3", "n4")
        await fleet.clock.advance(GRACE + 5)
        assert await fleet.lost("n4")
        assert await fleet.client.read(KEYS.failsafe("nodes")) is None


async def test_a_node_whose_record_was_deleted_while_its_agent_lives_is_written_down_again() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.client.delete(KEYS.node("n1"))
        await fleet.clock.advance(2)
        assert await fleet.node("n1") == Node()
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        assert await fleet.lost("n1")


async def test_r10_a_node_whose_record_does_not_decode_is_reported_and_still_given_up() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.client.put(KEYS.node("n1"), b'{"labels": 3}')
        await fleet.clock.advance(3)
        status = await fleet.status("n1")
        assert status is not None
        assert (status.state, "labels" in status.reason) == ("blocked", True)
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        assert await fleet.lost("n1")


async def test_people_are_told_of_an_absence_before_the_verdict_but_not_of_a_restart() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(3)
        assert await fleet.status("n1") is None
        await fleet.clock.advance(5)
        status = await fleet.status("n1")
        assert status is not None
        assert status.state == "absent"
        assert fleet.clock.now() - 9 <= status.absent_since <= fleet.clock.now() - 7
        await fleet.arrive("n1")
        await fleet.clock.advance(2)
        assert await fleet.status("n1") is None
