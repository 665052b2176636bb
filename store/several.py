"""Asks for many things side by side, and for not too many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


async def several(one: Callable[[S], Awaitable[T]], items: Iterable[S], at_once: int = 16) -> list[T]:
    """The results of ``one`` for all items, in their order; at most ``at_once`` run at a time.

    The first error is raised once the others were cancelled and have ended.
    """
    asked = list(items)
    found = dict[int, T]()
    left = iter(enumerate(asked))  # of which each task takes the next one

    async def take() -> None:
        for at, item in left:
            found[at] = await one(item)

    running = [asyncio.create_task(take()) for _ in range(min(at_once, len(asked)))]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
    return [found[at] for at in range(len(asked))]
