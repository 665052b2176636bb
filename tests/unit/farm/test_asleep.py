"""A worker with nothing to do has no task until it is woken; it is owned, crashes and stops as any other."""

from __future__ import annotations

import asyncio

import pytest

from farmd.farm.supervisor import STARTED_AT_ONCE, Supervisor
from store.locks import Claim
from store.sessions import Session
from tests.toys import Farms, ToyFarm

ITEM = "00aa00aa00aa00aa"


async def sleeps(claim: Claim, session: Session) -> bool:
    return True


async def asleep(farms: Farms) -> tuple[ToyFarm, Supervisor]:
    """A farm whose only item's worker sleeps."""
    farm = await farms.start("a")
    farm.kind.does[ITEM] = sleeps
    await farms.add(id=ITEM)
    await farms.clock.advance(1.0)
    assert farm.kind.starts == [ITEM]
    return farm, farm.farm.loops[0].supervisor


def tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith(ITEM)]


async def test_p3_it_has_no_task_and_each_change_of_its_record_wakes_it_once(farms: Farms) -> None:
    farm, _ = await asleep(farms)
    assert not tasks()
    assert await farms.locks()
    for changes in (1, 2):
        await farms.write(ITEM, hands=changes)
        await farms.clock.advance(1.0)
        assert farm.kind.starts == [ITEM] * (1 + changes)
        assert not tasks()
    assert farm.kind.at_work[ITEM] == 1


async def test_r10_its_crash_after_it_woke_is_one(farms: Farms) -> None:
    farm, _ = await asleep(farms)

    async def crash(claim: Claim, session: Session) -> bool:
        raise RuntimeError("no luck")

    farm.kind.does[ITEM] = crash
    await farms.write(ITEM, hands=1)
    await farms.clock.advance(0.5)
    work = await farms.work(ITEM)
    assert work is not None
    assert work.crashes == 1
    assert farm.kind.at_work[ITEM] == 0
    farm.kind.does[ITEM] = sleeps
    await farms.clock.advance(3.0)
    assert farm.kind.at_work[ITEM] == 1
    assert farm.kind.released == [ITEM]


@pytest.mark.parametrize("woken", [False, True])
async def test_r2_once_it_was_stopped_nothing_wakes_it(farms: Farms, woken: bool) -> None:
    farm, supervisor = await asleep(farms)
    if woken:  # its task has not run yet
        supervisor.record_changed(ITEM)
    stopped = await supervisor.stop([ITEM])
    assert [claim.item for claim in stopped] == [ITEM]
    await farms.clock.settle()
    assert farm.kind.at_work[ITEM] == 0
    assert farm.kind.starts == [ITEM]
    assert not tasks()


async def test_r2_a_farm_that_halts_wakes_nobody_and_frees_what_slept(farms: Farms) -> None:
    farm, supervisor = await asleep(farms)
    supervisor.halt()
    supervisor.record_changed(ITEM)
    await farms.clock.settle()
    assert farm.kind.starts == [ITEM]
    farm.stop.set()
    await farms.clock.advance(1.0)
    assert not await farms.locks()
    assert farm.kind.at_work[ITEM] == 0


async def test_p5_of_many_claims_all_get_workers(farms: Farms) -> None:
    made = await farms.add_at_once(3 * STARTED_AT_ONCE + 1)
    farm = await farms.start("a")
    await farms.clock.advance(2.0)
    assert farm.works_on == set(made)
