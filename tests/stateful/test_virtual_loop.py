"""The loop on which whole fleets live: time jumps, nothing is real, and every run is the same."""

from __future__ import annotations

import asyncio

import pytest

from farmd.housekeeping.facts import DEFAULTS
from farmd.replication.commands import RC
from tests.people import hello
from tests.stateful.fleet import Fleet
from tests.virtual_loop import LoopClock, NothingLeft, VirtualLoop


def test_time_jumps_from_timer_to_timer_in_order() -> None:
    loop = VirtualLoop()
    seen: list[tuple[str, float]] = []

    async def nap(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time()))

    async def all_of_them() -> None:
        await asyncio.gather(nap("late", 3600.0), nap("soon", 0.5), nap("first", 0.25))

    loop.run(all_of_them(), within=4000.0)
    loop.end()
    assert seen == [("first", 0.25), ("soon", 0.5), ("late", 3600.0)]


def test_timeouts_are_virtual_too() -> None:
    loop = VirtualLoop()

    async def forever() -> None:
        async with asyncio.timeout(1000.0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        loop.run(forever(), within=2000.0)
    assert loop.time() == pytest.approx(1000.0)
    loop.end()


def test_waiting_for_nothing_is_told_instead_of_hanging() -> None:
    loop = VirtualLoop()
    with pytest.raises(NothingLeft):
        loop.run_until_complete(asyncio.Event().wait())
    loop.end()


def test_errors_that_nobody_retrieves_are_kept() -> None:
    loop = VirtualLoop()
    loop.call_soon(lambda: 1 / 0)
    loop.settle()
    assert "ZeroDivisionError" in loop.crashes[0]
    loop.end()


def test_the_wall_clock_starts_where_it_is_told_to() -> None:
    loop = VirtualLoop()
    clock = LoopClock(loop, 500.0)
    loop.advance(2.5)
    assert (clock.now(), clock.mono()) == (502.5, 502.5)
    loop.end()


def story() -> list[str]:
    """Every commit of a busy minute."""
    fleet = Fleet(DEFAULTS)
    try:
        for number in range(3):
            fleet.add_node(f"n{number}", {"zone": "a"}, 4.0)
        for name in ("ash", "birch"):
            fleet.run(fleet.farms[name].start())
        spec = RC.file.parse(hello(replicas=3), "test")
        fleet.ask(lambda: RC.create(fleet.call, spec))
        fleet.advance(10.0)
        fleet.run(fleet.farms["ash"].kill())
        fleet.run(fleet.agents["n1"].die(at_once=False))
        fleet.farms["birch"].line.spoil(1, "unanswered")
        fleet.advance(50.0)
        return list(fleet.witness.story)
    finally:
        fleet.close()


def test_a_fleet_does_the_same_in_every_run() -> None:
    assert story() == story()
