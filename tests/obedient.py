"""Agents without machines that do what intents say, except where a test wants a pod to be unwell.

``tests.fleet.Cluster.obey`` makes everything healthy at once; here a test says which nodes' pods fail, and
which agents are deaf to new intents.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from store import codec
from store.intent import Intent
from store.reality import Health, Reality
from tests.fleet import CLOCK, Cluster

Place = tuple[str, str]


class Obedient:
    """All agents of a cluster. ``sick`` nodes' pods fail their check, ``deaf`` agents act on nothing new.

    Pods of a manifest whose digest is ``broken`` fail on every node. While ``pulling`` says how far they are,
    agents start nothing new.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._written: dict[Place, tuple[int, str]] = {}
        self.sick: set[str] = set()
        self.deaf: set[str] = set()
        self.broken: set[str] = set()
        self.pulling = ""
        self.sick_since = 0.0

    async def run(self) -> None:
        """Act until cancelled, a few times a second."""
        while True:
            await self._round()
            await asyncio.sleep(0.05)

    async def _round(self) -> None:
        keys, client = self._cluster.keys, self._cluster.client
        found = await self._cluster.entries(keys.tree("intent"))
        wanted = {keys.intent_parts(key): entry for key, entry in found.items()}
        for place, entry in wanted.items():
            intent = codec.decode(Intent, entry.value, entry.key)
            state = "critical" if place[0] in self.sick or intent.manifest in self.broken else "passing"
            if place[0] in self.deaf or self._written.get(place) == (entry.modify_index, state):
                continue
            since = self.sick_since or CLOCK.now()
            if self.pulling:
                pulls = Reality(
                    manifest=intent.manifest, owner=intent.owner, phase="starting", preparing=self.pulling
                )
                await client.put(keys.reality(*place), codec.encode(pulls))
                continue
            reality = Reality(
                manifest=intent.manifest,
                owner=intent.owner,
                started=CLOCK.now(),
                intent=entry.modify_index,
                health=Health(state, since),  # type: ignore[arg-type]
            )
            await client.put(keys.reality(*place), codec.encode(reality))
            self._written[place] = (entry.modify_index, state)
        for place in self._written.keys() - wanted.keys():
            if place[0] not in self.deaf:
                await client.delete(keys.reality(*place))
                del self._written[place]


@asynccontextmanager
async def obedient(cluster: Cluster) -> AsyncIterator[Obedient]:
    """Agents for the length of a ``with`` block."""
    agents = Obedient(cluster)
    task = asyncio.create_task(agents.run())
    try:
        yield agents
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
