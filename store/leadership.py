"""Who leads Consul's servers, and what a change of the leader does to parked queries (R23).

A server passes a parked query on to its leader. When the leader's machine goes silently (power, network),
the others elect another leader within seconds, but hold the query for half a minute more before they find
its connection dead. Until then the query is silent, whatever changes: so it is dropped and sent again.

A leader that is stopped cleanly ends the queries that are parked there as a restored snapshot does: early,
with the index that they began with. Only who leads afterwards tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from store.consul.client import ConsulClient
from store.errors import StoreError
from store.ports import Clock

log = structlog.get_logger()

LOOK_SECONDS = 5.0


class Leadership:
    """The leader as one process knows it; ``known`` is empty until it was told once."""

    def __init__(self, client: ConsulClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.known = ""

    async def run(self, on_look: Callable[[], None] = lambda: None) -> None:
        """Look every ``LOOK_SECONDS`` until cancelled; ``on_look`` is called after each look."""
        while True:
            await self.look()
            on_look()
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> str:
        """Who leads now, or led last if nobody tells; of another one all parked queries are dropped."""
        try:
            leader = await self._client.leader()
        except StoreError as error:
            log.debug("leader.unknown", code=error.code)
            return self.known
        if leader and leader != self.known:
            before, self.known = self.known, leader
            if before:
                log.info("leader.changed", before=before, now=leader)
                self._client.drop_parked()
        return self.known
