"""Blocking queries by the index rules (Consul ``features/blocking``; R23).

One parked query a prefix; the first wait after a whole read is shorter, each its own, so that a process's
queries do not all end at once: what comes at the end of a wait is the whole prefix again. An index lower
than before starts again from 0; an unchanged index yields nothing; a missing index never spins. Waits are
at most 60 s, because a frozen server answers nothing. Errors are told to the caller, and retried with
jittered backoff for ever: silence is its to judge. After an error the whole prefix is read at once: a
server that was wiped or restored meanwhile would keep a query with the old, higher index parked for all of
its wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import structlog

from store.entry import Page
from store.errors import StoreError
from store.ports import Clock, Rng

T = TypeVar("T")
log = structlog.get_logger()

WAIT_SECONDS = 55.0
BACKOFF_START = 0.25
BACKOFF_LIMIT = 5.0
NO_INDEX_PAUSE = 1.0
FIRST_WAIT_LEAST = 0.25


async def follow(
    query: Callable[[int, float], Awaitable[Page[T]]],
    *,
    name: str,
    clock: Clock,
    rng: Rng,
    wait: float = WAIT_SECONDS,
    pause: float = 0.0,
    on_error: Callable[[StoreError], None] = lambda _: None,
    on_answer: Callable[[], None] = lambda: None,
) -> AsyncIterator[Page[T]]:
    """Yield a page each time the index moves; the first one at once. Never ends by itself.

    ``query(index, wait)`` is one blocking query. ``pause`` is the least time between two pages, in
    seconds: what changed meanwhile comes as one page. ``on_answer`` is called for every good answer, also
    an unchanged one, so that the caller can see a watch that went silent. After an error the next page is
    yielded in any case.
    """
    index, backoff, spread = 0, BACKOFF_START, False
    while True:
        try:
            least = FIRST_WAIT_LEAST if spread else 1.0
            page = await query(index, wait * rng.uniform(least, 1.0) if index else 0.0)
            spread = not index
        except StoreError as error:
            index = 0
            on_error(error)
            log.debug("watch.failed", watch=name, code=error.code, error=error.message)
            await clock.sleep(backoff * rng.uniform(0.5, 1.5))
            backoff = min(backoff * 2, BACKOFF_LIMIT)
            continue
        backoff = BACKOFF_START
        on_answer()
        if page.index and page.index == index:
            continue
        if page.index < index:
            log.info("watch.index_reset", watch=name)
            index = 0
            continue
        index = page.index
        yield page
        del page
        if pause or not index:
            await clock.sleep(pause if index else max(pause, NO_INDEX_PAUSE))
