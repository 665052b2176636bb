"""What people are alerted of while a rollout lasts: when each alert begins, and when it ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from farmd.farm.alerts import Incidents
from farmd.rollout.report import LOW_SECONDS, WAITS_SECONDS, RolloutAlerts
from store.policies import Stage
from store.rollouts import RolloutState
from tests.fleet import Inbox
from tests.rollout_worlds import NEW, NOW, World, on, rollout
from tests.still_clock import StillClock

WAITS, STUCK, FAILED = "rollout_waits_web", "rollout_stuck_web", "rollout_web"


class Watched:
    """A rollout of four pods and its alerts, told of at each look."""

    def __init__(self, state: RolloutState | None = None, **said: Any) -> None:
        self.world = World(rollout(4, 3, **said), on(4), state=state)
        self.inbox, self.clock = Inbox(), StillClock(NOW)
        self.incidents = Incidents(self.inbox)
        self.take_over()

    def take_over(self) -> None:
        """Another farm claims it: it knows the state, and what the status lists."""
        self.incidents = Incidents(self.inbox, self.incidents.open())
        self.alarms = RolloutAlerts(self.incidents, self.clock, "farm-1")

    async def look(self, **fields: Any) -> float | None:
        shot = dataclasses.replace(self.world.snapshot(**fields), now=self.clock.now())
        return await self.alarms.tell(shot, self.world.decide(**{**fields, "now": self.clock.now()}))

    def say(self, **fields: Any) -> None:
        self.world.rollout = msgspec.structs.replace(self.world.rollout, **fields)


def halted(**fields: Any) -> RolloutState:
    return RolloutState(
        **({"phase": "halted", "since": NOW, "cause": "n1/web fails", "fault": True} | fields)
    )


async def test_a_version_that_failed_is_told_of_by_whoever_finds_its_state() -> None:
    found = Watched(halted())
    await found.look()
    (alert,) = found.inbox.fired
    assert (alert.incident_key, alert.urgency) == (FAILED, "low")
    assert alert.summary == f"rollout web to {'b' * 12}: n1/web fails"
    found.take_over()
    await found.look()
    assert len(found.inbox.fired) == 1
    found.world.state = RolloutState(phase="moving", since=NOW)  # a person resumed it
    await found.look()
    assert found.inbox.resolved == [FAILED]


async def test_a_way_back_is_told_of_while_it_lasts_unless_a_person_wished_it() -> None:
    back = RolloutState(phase="moving", back=True, since=NOW, cause="gate errors failed")
    found = Watched(back)
    await found.look()
    assert set(found.inbox.firing) == {FAILED}
    wished = Watched(back, wish="revert")
    await wished.look()
    assert wished.inbox.fired == []


async def test_a_way_back_that_stands_still_is_urgent_until_it_moves_with_enough_pods() -> None:
    found = Watched(halted(back=True))
    assert await found.look() == LOW_SECONDS
    found.clock.seconds += LOW_SECONDS
    await found.look()
    assert found.inbox.firing[STUCK].urgency == "high"
    found.take_over()
    found.world.state = RolloutState(phase="moving", back=True, since=NOW, cause="n1/web fails")
    found.world.old = on(2)
    await found.look()
    assert STUCK in found.inbox.firing
    found.world.old = on(4)
    await found.look()
    assert found.inbox.resolved == [STUCK]


async def test_a_halt_below_the_floor_is_urgent_after_a_while() -> None:
    found = Watched(halted(fault=False, cause="paused"), paused=True)
    found.world.old = on(2)
    found.world.counts = {"00aa": 4}
    await found.look()
    found.world.old = on(4)  # a pod was only restarted
    found.clock.seconds += LOW_SECONDS
    await found.look()
    found.world.old = on(2)
    await found.look()
    assert STUCK not in found.inbox.firing
    found.clock.seconds += LOW_SECONDS
    await found.look()
    assert "2 pods are available, expected 3 or more" in found.inbox.firing[STUCK].summary


@pytest.mark.parametrize(
    ("state", "said", "fields"),
    [
        (None, {"at": NOW, "paused": True}, {}),
        (RolloutState(phase="baking", since=NOW), {"paused": True}, {}),
        (RolloutState(phase="halted", since=NOW, cause="paused"), {"paused": True}, {}),
        (None, {"at": NOW, "policy": {"stages": [Stage(to="100%", approve=True)]}}, {}),
        (RolloutState(phase="halted", since=NOW, cause="locked"), {}, {"locked": "user/ada"}),
        (RolloutState(phase="moving", since=NOW), {"policy": {"progress_deadline": 9e9}}, {"unfit": True}),
    ],
    ids=["pending", "resting", "halted", "unapproved", "locked", "no room"],
)
async def test_what_only_people_end_is_told_of_after_an_hour(
    state: RolloutState | None, said: dict[str, Any], fields: dict[str, Any]
) -> None:
    found = Watched(state, **said)
    if fields.pop("unfit", False):
        found.world.unfit = frozenset(on(4))
    assert await found.look(**fields) == WAITS_SECONDS
    assert found.inbox.fired == []
    found.clock.seconds += WAITS_SECONDS
    await found.look(**fields)
    assert set(found.inbox.firing) == {WAITS}
    found.world.unfit = frozenset()
    found.say(paused=False, approved=1)
    await found.look()
    assert found.inbox.resolved == [WAITS]


BAKED = RolloutState(phase="baking", since=NOW, reached=NOW)
ASKS = {"stages": [Stage(to=1), Stage(to="100%", approve=True)]}
DURABLE: dict[str, tuple[RolloutState | None, dict[str, Any], dict[str, Any]]] = {
    "halted": (RolloutState(phase="halted", since=NOW, cause="paused"), {"paused": True}, {}),
    "pending": (None, {"at": NOW, "paused": True}, {}),
    "paused in a rest": (BAKED, {"paused": True, "paused_at": NOW}, {}),
    "locked in a rest": (BAKED, {}, {"locked": "user/ada"}),
    "disabled in a rest": (BAKED, {}, {"disabled": True}),
    "unapproved": (BAKED, {"policy": ASKS}, {}),
    "no room": (
        RolloutState(phase="moving", since=NOW),
        {"policy": {"progress_deadline": 9e9}},
        {"unfit": True},
    ),
}


@pytest.mark.parametrize("case", DURABLE)
async def test_the_hour_goes_on_with_whoever_takes_the_rollout_over(case: str) -> None:
    state, said, fields = DURABLE[case]
    found = Watched(state, **said)
    if fields.pop("unfit", False):
        found.world.unfit = frozenset(on(4))
    if case == "unapproved":
        found.world.old, found.world.new = on(3), on(1, NEW)
    if fields.pop("disabled", False):
        old = found.world.snapshot().old
        assert old is not None
        fields["old"] = dataclasses.replace(old, rc=msgspec.structs.replace(old.rc, disabled=True))
    await found.look(**fields)
    found.clock.seconds += WAITS_SECONDS - 1
    found.take_over()
    assert await found.look(**fields) == 1


async def test_a_pause_in_a_long_rest_is_told_of_an_hour_after_the_pause() -> None:
    found = Watched(RolloutState(phase="baking", since=NOW - 9000, reached=NOW - 9000))
    found.say(paused=True, paused_at=NOW)
    assert await found.look() == WAITS_SECONDS
