"""Blocking queries by the index rules (Consul ``features/blocking``; R23).

One parked query a prefix; the first wait after a whole read is shorter, each its own, so that a process's
queries do not all end at once: what comes at the end of a wait is the whole prefix again. An index lower
than before starts again from 0; an unchanged index yields nothing; a missing index never spins. Waits are
at most 60 s, because a frozen server answers nothing. Errors are told to the caller, and retried with
jittered backoff for ever: silence is its to judge.

A server whose data were restored from a snapshot knows lower indexes than before, and would keep a query
with an index of before parked for all of its wait. The restore ends every parked query before its wait is
over, with the index that it began with. So does a server that allows no such long waits: what tells them
apart is that the index is another one right after. After such an answer, after one that came too late to
tell, and after an error, the whole prefix is read at once.
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
LONGEST_SHARE = 17 / 16  # Consul's own jitter
EARLY_SHARE = 0.995  # of a wait: two clocks may differ by that much
LATE_SECONDS = 10.0


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
    on_restore: Callable[[], None] = lambda: None,
) -> AsyncIterator[Page[T]]:
    """Yield a page each time the index moves; the first one at once. Never ends by itself.

    ``query(index, wait)`` is one blocking query. ``pause`` is the least time between two pages, in
    seconds: what changed meanwhile comes as one page. ``on_answer`` is called for every good answer, also
    an unchanged one, so that the caller can see a watch that went silent; ``on_restore`` when the server's
    data were restored from a snapshot. After that or an error the next page is yielded in any case.
    """
    index, backoff, spread, ended_early = 0, BACKOFF_START, False, 0
    while True:
        try:
            least = FIRST_WAIT_LEAST if spread else 1.0
            seconds, asked = wait * rng.uniform(least, 1.0) if index else 0.0, clock.mono()
            page = await query(index, seconds)
            took, spread = clock.mono() - asked, not index
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
            if took < seconds * EARLY_SHARE:
                log.info("watch.ended_early", watch=name, seconds=round(took, 1))
                ended_early, index = index, 0
                await clock.sleep(BACKOFF_START * rng.uniform(0.5, 1.5))  # all processes are woken at once
            elif took > seconds * LONGEST_SHARE + LATE_SECONDS:
                index = 0
            continue
        if ended_early not in (0, page.index):
            on_restore()
        ended_early = 0
        if page.index < index:
            log.info("watch.index_reset", watch=name)
            index = 0
            continue
        index = page.index
        yield page
        del page
        if pause or not index:
            await clock.sleep(pause if index else max(pause, NO_INDEX_PAUSE))
