"""An incident outlives the process that told of it: its heir ends it, and does not tell it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from alerting.alert import Alert
from alerting.errors import DeliveryFailed
from alerting.router import Route, Router
from farmd.farm.alerts import Incidents
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock

KEY = "rc1"
TROUBLE = Alert(summary="web: not enough nodes", incident_key=KEY)


class People:
    """Everybody who is told anything, by whichever process."""

    name = "webhook"

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.deaf = False

    async def deliver(self, alert: Alert) -> None:
        if self.deaf:
            raise DeliveryFailed("status 503")
        self.told.append((alert.incident_key, alert.state))

    async def close(self) -> None:
        pass


@asynccontextmanager
async def process(people: People, clock: VirtualClock | None = None, **route: Any) -> AsyncIterator[Router]:
    """A farm's alerter: a memory of its own, told to the same people."""
    router = Router([Route(people, **route)], clock or VirtualClock(), CountingRecorder())
    task = asyncio.create_task(router.run())
    try:
        yield router
        await router.drain()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def people() -> People:
    return People()


async def test_the_heir_of_an_item_ends_what_the_dead_farm_told(people: People) -> None:
    async with process(people) as dead:
        before = Incidents(dead)
        await before.tell(TROUBLE)
    async with process(people) as heir:
        await Incidents(heir, before.open()).end(KEY)
    assert people.told == [(KEY, "firing"), (KEY, "resolved")]


async def test_the_heir_does_not_tell_again_what_goes_on(people: People) -> None:
    async with process(people) as dead:
        before = Incidents(dead)
        await before.tell(TROUBLE)
    async with process(people) as heir:
        after = Incidents(heir, before.open())
        for _ in range(3):
            await after.tell(TROUBLE)
        assert people.told == [(KEY, "firing")]
        assert after.open() == (KEY,)
        await after.end(KEY)
    assert people.told == [(KEY, "firing"), (KEY, "resolved")]
    assert after.open() == ()


async def test_an_item_that_comes_back_is_told_of_anew(people: People) -> None:
    """The first farm still believes that people know, though the second has told them that it was over."""
    async with process(people) as first, process(people) as second:
        one = Incidents(first)
        await one.tell(TROUBLE)
        two = Incidents(second, one.open())
        await two.end(KEY)
        await second.drain()
        again = Incidents(first, two.open())
        await again.tell(TROUBLE)
        await first.drain()
        assert people.told == [(KEY, "firing"), (KEY, "resolved"), (KEY, "firing")]


async def test_what_was_never_open_is_never_ended(people: People) -> None:
    async with process(people) as router:
        incidents = Incidents(router)
        await incidents.end(KEY)
        await incidents.end_all()
    assert people.told == []


async def test_an_item_that_is_gone_ends_all_that_was_wrong_with_it(people: People) -> None:
    async with process(people) as router:
        incidents = Incidents(router, ["transfer_rc1"])
        await incidents.tell(TROUBLE)
        await incidents.end_all()
        await router.drain()
        assert incidents.open() == ()
    assert people.told == [(KEY, "firing"), ("transfer_rc1", "resolved"), (KEY, "resolved")]


HIGH_ONLY = {"urgencies": frozenset({"high"})}


async def test_the_end_of_an_inherited_incident_goes_to_every_sink_whatever_its_route_takes(
    people: People,
) -> None:
    """The heir does not know with which urgency and labels it was fired."""
    async with process(people, **HIGH_ONLY) as router:
        await Incidents(router, [KEY]).end(KEY)
    assert people.told == [(KEY, "resolved")]


async def test_an_inherited_incident_that_is_less_urgent_now_ends_where_it_began(people: People) -> None:
    clock = VirtualClock()
    async with process(people, **HIGH_ONLY) as former:
        before = Incidents(former)
        await before.tell(msgspec.structs.replace(TROUBLE, urgency="high"))
    async with process(people, clock, keep=60.0, **HIGH_ONLY) as heir:
        after = Incidents(heir, before.open())
        await after.tell(TROUBLE)
        await clock.advance(600)
        assert people.told == [(KEY, "firing")]
        await after.end(KEY)
    assert people.told == [(KEY, "firing"), (KEY, "resolved")]


@pytest.mark.parametrize("leaves", [Incidents.release, lambda former: former.pass_on(KEY)])
async def test_what_another_item_or_farm_ends_is_never_told_again_by_the_former(
    people: People, leaves: Callable[[Incidents], None]
) -> None:
    clock = VirtualClock()
    async with process(people, clock, keep=60.0) as one, process(people, clock, keep=60.0) as two:
        former = Incidents(one)
        await former.tell(TROUBLE)
        await one.drain()
        heir = Incidents(two, former.open())
        leaves(former)
        await heir.tell(TROUBLE)
        await clock.advance(90)
        assert people.told == [(KEY, "firing")] * 2
        await heir.end(KEY)
        await clock.advance(3600)
    assert people.told == [(KEY, "firing")] * 2 + [(KEY, "resolved")]


async def test_an_end_that_is_not_delivered_is_still_open_for_the_heir(people: People) -> None:
    """The farm that ended it may die before anybody has heard: whoever is next ends it then."""
    async with process(people) as dead:
        before = Incidents(dead)
        await before.tell(TROUBLE)
        await dead.drain()
        people.deaf = True
        await before.end(KEY)
        await dead.drain()
        assert before.open() == (KEY,)
        assert KEY not in before
    people.deaf = False
    async with process(people) as heir:
        after = Incidents(heir, before.open())
        await after.end(KEY)
        await heir.drain()
        assert after.open() == ()
    assert people.told == [(KEY, "firing"), (KEY, "resolved")]
