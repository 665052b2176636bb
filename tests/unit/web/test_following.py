"""What the page follows while somebody looks, also where a look begins as the last one ends."""

from __future__ import annotations

import asyncio

import pytest

from farmd.runtime.clock import SystemClock
from farmd.web import lists


async def test_a_look_that_begins_while_the_last_one_ends_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "LINGER_SECONDS", 0.0)
    begun, ending, may_end = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()

    looked = lists.WhileLooked(lambda: iter([asyncio.create_task(follow())]), SystemClock())
    async with asyncio.timeout(10):
        with looked.looking():
            await begun.acquire()
        await ending.wait()
        with looked.looking():
            may_end.set()
            await begun.acquire()
        await looked.close()
