"""Limiter: a crowd that wakes at once neither stops the loop for others nor overtakes one another."""

from __future__ import annotations

import asyncio

import pytest

from farmd.work.context import Limiter


async def passes(begun: list[int], count: int) -> list[int]:
    """How many had begun after each pass of the loop, until so many have."""
    seen = []
    while len(begun) < count:
        await asyncio.sleep(0)
        seen.append(len(begun))
        assert len(seen) < 100 * count
    return seen


@pytest.fixture
def begin():
    """Starts workers that note their number at their turn."""

    def start(turns: Limiter, numbers: range, begun: list[int]) -> list[asyncio.Task[None]]:
        async def worker(number: int) -> None:
            await turns.turn()
            begun.append(number)

        return [asyncio.create_task(worker(number)) for number in numbers]

    return start


async def test_a_crowd_begins_a_few_at_a_time_and_in_order(begin):
    turns, begun = Limiter(at_once=5), list[int]()
    begin(turns, range(100), begun)
    seen = await passes(begun, 100)
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 5
    assert begun == list(range(100))


async def test_one_alone_does_not_wait():
    turns = Limiter(at_once=1)
    for _ in range(3):
        waiting = turns.turn()
        with pytest.raises(StopIteration):
            waiting.send(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_who_comes_later_overtakes_nobody(begin):
    turns, begun = Limiter(at_once=3), list[int]()
    begin(turns, range(20), begun)
    await asyncio.sleep(0)
    begin(turns, range(20, 40), begun)
    await passes(begun, 40)
    assert begun == list(range(40))


async def test_who_waits_for_the_store_keeps_nobody_back(begin):
    turns, begun, store = Limiter(at_once=2), list[int](), asyncio.Event()

    async def hangs() -> None:
        await turns.turn()
        await store.wait()

    hanging = [asyncio.create_task(hangs()) for _ in range(10)]
    begin(turns, range(10), begun)
    await passes(begun, 10)
    assert not any(task.done() for task in hanging)
    store.set()
    await asyncio.gather(*hanging)


async def test_who_is_cancelled_takes_no_turn(begin):
    turns, begun = Limiter(at_once=1), list[int]()
    tasks = begin(turns, range(10), begun)
    await asyncio.sleep(0)
    for task in tasks[1:9]:
        task.cancel()
    await passes(begun, 2)
    assert begun == [0, 9]
