"""Who leads Consul's servers, and what a change of the leader does to parked queries (R23).

A server passes a parked query on to its leader. When the leader's machine goes silently (power, network),
the others elect another leader within seconds, but hold the query for half a minute more before they find
its connection dead. Until then the query is silent, whatever changes: so it is dropped and sent again.

The same holds of a server to which Consul's agent on this machine passes queries on. Once that server has
gone silently the agent asks another one, under the same leader; of that only a look without an answer tells.

A leader that is stopped cleanly ends the queries that are parked there as a restored snapshot does: early,
with the index that they began with. Only who leads afterwards tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from store.consul.client import ConsulClient
from store.consul.exchange import RENEW_SECONDS
from store.errors import StoreError
from store.ports import Clock

log = structlog.get_logger()

LOOK_SECONDS, RETRY_SECONDS = 5.0, 1.0
# What took so long had no answer: a connection that is refused or cut ends sooner, and those of parked
# queries with it.
SILENT_SECONDS = 0.9 * RENEW_SECONDS


class Leadership:
    """The leader as one process knows it; ``known`` is empty until it was told once."""

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
        """Who leads now, or led last if nobody tells.

        Of another leader, and after a silence, all parked queries are dropped.
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
