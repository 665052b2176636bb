"""Blocking queries by the index rules (Consul ``features/blocking``; R23).

There is one parked query a prefix. The end of a wait brings the whole prefix again; so the first wait after a
whole read is shorter by chance, and the queries of a process do not end at the same time. A lower index
starts again from 0; an unchanged index yields nothing; after a missing index there is a pause. Waits are at
most 60 s, because a frozen server answers nothing. Errors are reported to the caller and retried with
jittered backoff without limit; the caller must judge how long a silence may last.

A server that was restored from a snapshot has lower indexes than before, and would park a query with an old
index until the end of its wait. The restore ends every parked query early, with the index that it began
with. So does a server that does not allow such long waits; but after a restore the next read has another
index. So the whole prefix is read at once after such an answer, after an answer that came too late to tell,
and after an error. A leader that is stopped cleanly ends parked queries in the same way; then another one
leads.

An answer that proves nothing may have an index that is as wrong as its entries: a query with that index would
be silent until the end of its wait. So it is repeated without an index.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import structlog

from store.consul.client import ConsulClient
from store.consul.exchange import RENEW_SECONDS
from store.entry import Page
from store.errors import StoreError
from store.ports import Clock, Rng

# Who leads Consul's servers, and what a change of the leader does to parked queries (R23).
#
# A server passes a parked query on to its leader. When the leader's machine goes silently (power, network),
# the others elect another leader within seconds, but hold the query for half a minute more before they find
# its connection dead. Until then the query is silent, whatever changes: so it is dropped and sent again.
#
# The same holds of a server to which Consul's agent on this machine passes queries on. Once that server has
# gone silently the agent asks another one, under the same leader; of that only a look without an answer
# tells.
#
# A leader that is stopped cleanly ends the queries that are parked there as a restored snapshot does:
# early, with the index that they began with. Only who leads afterwards tells the two apart.

log = structlog.get_logger()

LOOK_SECONDS, RETRY_SECONDS = 5.0, 1.0
# What took so long had no answer: a connection that is refused or cut ends sooner, and those of parked
# queries with it.
SILENT_SECONDS = 0.9 * RENEW_SECONDS


class Leadership:
    """The leader as one process knows it; ``known`` is empty until the first answer."""

    def __init__(self, client: ConsulClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._silent = False
        self.known = ""

    async def run(self, on_look: Callable[[], None] = lambda: None) -> None:
        """Look every ``LOOK_SECONDS`` until cancelled, and sooner after a look without an answer.

        ``on_look`` is called after each look.
        """
        while True:
            await self.look()
            on_look()
            await self._clock.sleep(RETRY_SECONDS if self._silent else LOOK_SECONDS)

    async def look(self) -> str:
        """The present leader, or the last known one. If the leader changes, and after a silence, all parked
        queries are dropped.
        """
        asked = self._clock.mono()
        try:
            leader = await self._client.leader(RENEW_SECONDS)
        except StoreError as error:
            self._silent |= self._clock.mono() - asked > SILENT_SECONDS
            log.debug("leader.unknown", code=error.code)
            return self.known
        if leader:
            self._heard(leader)
        return self.known

    def _heard(self, leader: str) -> None:
        before, self.known = self.known, leader
        silent, self._silent = self._silent, False
        if before and leader != before:
            log.info("leader.changed", before=before, now=leader)
        elif before and silent:
            log.info("leader.heard_again", leader=leader)
        else:
            return
        self._client.drop_parked()


T = TypeVar("T")

WAIT_SECONDS = 55.0
BACKOFF_START = 0.25
BACKOFF_LIMIT = 5.0
NO_INDEX_PAUSE = 1.0
FIRST_WAIT_LEAST = 0.25
LONGEST_SHARE = 17 / 16  # Consul's own jitter
EARLY_SHARE = 0.995  # of a wait: the two clocks may differ by so much
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
    leadership: Leadership | None = None,
    proven: Callable[[Page[T]], bool] = lambda _: True,
) -> AsyncIterator[Page[T]]:
    """Yield a page each time the index changes, the first one at once. Never ends by itself.

    ``query(index, wait)`` is one blocking query. ``pause`` is the least time between two pages, in
    seconds; all changes within it come as one page. ``on_answer`` is called for every good answer, also
    an unchanged one, so that the caller can detect a silent watch; ``on_restore`` is called when the
    server was restored from a snapshot, which ``leadership`` tells from the end of a leader. After a restore
    or an error the next page is always yielded. A page that is not ``proven`` is yielded, too, and the prefix
    read again after a pause that grows as after errors.
    """
    index, backoff, spread, ended_early, led = 0, BACKOFF_START, False, 0, ""
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
        on_answer()
        if index:  # a whole read proves nothing of parked queries, which something may end with an error
            backoff = BACKOFF_START
        if page.index and page.index == index:
            if took < seconds * EARLY_SHARE:
                log.info("watch.ended_early", watch=name, seconds=round(took, 1))
                ended_early, index, led = index, 0, "" if leadership is None else leadership.known
                await clock.sleep(BACKOFF_START * rng.uniform(0.5, 1.5))  # all processes are woken at once
            elif took > seconds * LONGEST_SHARE + LATE_SECONDS:
                index = 0
            continue
        if not proven(page):
            index = 0
            yield page
            del page
            await clock.sleep(backoff * rng.uniform(0.5, 1.5))
            backoff = min(backoff * 2, BACKOFF_LIMIT)
            continue
        if ended_early not in (0, page.index):
            if leadership is None or await leadership.look() == led or not led:
                on_restore()
            else:
                log.info("watch.leader_ended", watch=name, leader=led)
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
