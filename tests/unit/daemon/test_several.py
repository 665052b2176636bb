"""Tasks that run together: an error of one leaves none of them behind."""

from __future__ import annotations

import asyncio

import pytest

from store.several import several


async def test_results_come_in_the_order_of_what_was_asked_for_whatever_ends_first() -> None:
    running, most = set[int](), 0

    async def one(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        running.remove(number)
        return number

    assert await several(one, iter(range(20)), at_once=3) == list(range(20))
    assert most == 3
    assert await several(one, [], at_once=3) == []


async def test_after_the_first_error_nothing_goes_on_and_nothing_more_is_begun() -> None:
    begun, ended = list[int](), list[int]()

    async def one(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.sleep(0)
            if number == 1:
                raise LookupError
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(LookupError):
        await several(one, range(100), at_once=3)
    assert len(begun) <= 6
    assert sorted(ended) == begun
    assert asyncio.all_tasks() == {asyncio.current_task()}
