"""What a node's worker writes besides its verdict: reasons, statuses, alerts; and nothing of who is gone."""

from __future__ import annotations

import pytest

from store.errors import AccessDenied, StoreError, StoreUnavailable, TooLarge
from tests.node_farms import GRACE, KEYS, base64_of, fleet_of

NODES = ("n1", "n2", "n3", "n4", "n5")


async def test_r10_a_status_that_does_not_decode_is_replaced_by_whoever_takes_the_node_over() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.client.put(KEYS.status("nodes", "n1"), b'{"state": 3}')
        await fleet.start("a")
        await fleet.clock.advance(3)
        assert await fleet.status("n1") is None


async def test_verdicts_say_why_in_the_audit() -> None:
    async with fleet_of(*NODES) as fleet:
        await fleet.start("a")
        await fleet.client.delete(KEYS.node("n1"))
        await fleet.clock.advance(2)
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        await fleet.arrive("n1")
        await fleet.clock.advance(2)
        actions = ("node.register", "node.lost", "node.back")
        assert [record.reason for action in actions for record in await fleet.audits(action)] == [
            "its agent is running, but its record was missing",
            f"absent for {GRACE:.0f} s",
            "its agent is back",
        ]


async def test_an_alert_of_a_verdict_whose_answer_was_lost_is_told_all_the_same() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE - 2)

        async def unanswered(request: object, *_: object) -> None:
            if b"lost_since" in base64_of(request):
                farm.faults.after = None
                raise StoreUnavailable("the answer is lost")

        farm.faults.after = unanswered
        await fleet.clock.advance(10)
        assert farm.faults.after is None, "no verdict was sent"
        assert await fleet.lost("n1")
        assert "node_lost_n1" in farm.alerts.firing


async def test_a_node_that_is_gone_takes_its_alerts_along() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")
        await fleet.clock.advance(GRACE + 3)
        assert "node_lost_n1" in farm.alerts.firing
        await fleet.client.delete(KEYS.node("n1"))
        await fleet.clock.advance(2)
        assert farm.alerts.resolved == ["node_lost_n1"]


async def test_r12_no_status_outlives_its_node() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")

        async def gone_just_now(request: object) -> None:
            if b"absent" in base64_of(request):
                farm.faults.before = None
                await fleet.client.delete(KEYS.node("n1"))

        farm.faults.before = gone_just_now
        await fleet.clock.advance(10)
        assert farm.faults.before is None, "no status was sent"
        assert await fleet.status("n1") is None


async def test_r12_an_agent_that_a_late_watch_still_shows_registers_nothing() -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")

        async def gone_just_now(request: object) -> None:
            if getattr(request, "path", "") == "/v1/txn":
                farm.faults.before = None
                await fleet.client.delete(KEYS.agent("n1"))

        farm.faults.before = gone_just_now
        await fleet.client.delete(KEYS.node("n1"))
        await fleet.clock.advance(10)
        assert farm.faults.before is None, "nothing was sent"
        assert await fleet.client.read(KEYS.node("n1")) is None


@pytest.mark.parametrize("error", [AccessDenied("it may not write this"), TooLarge("its value is too large")])
async def test_what_only_people_can_mend_stands_in_the_status_until_it_is_mended(error: StoreError) -> None:
    async with fleet_of(*NODES) as fleet:
        farm = await fleet.start("a")
        await fleet.leave("n1")

        async def deny(request: object) -> None:
            if b"lost_since" in base64_of(request):
                raise error

        farm.faults.before = deny
        await fleet.clock.advance(GRACE + 5)
        status = await fleet.status("n1")
        assert status is not None
        assert (status.state, status.reason) == ("blocked", f"{error.code}: {error.message}")
        farm.faults.before = None
        await fleet.clock.advance(60)
        assert await fleet.lost("n1")
        status = await fleet.status("n1")
        assert status is not None
        assert status.state == "lost"
