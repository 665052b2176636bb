"""Agents without machines that do what intents say, except where a test wants a pod to be unwell.

``tests.fleet.Cluster.obey`` makes everything healthy at once; here a test says which nodes' pods fail, and
which agents are deaf to new intents.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from store import codec, operations
from store.entry import Entry
from store.reality import Health, HealthState, Intent, Reality
from tests.fleet import CLOCK, LIMIT, Cluster

Place = tuple[str, str]


class Obedient:
    """All agents of a cluster. ``sick`` nodes' pods fail their check, ``deaf`` agents act on nothing new.

    Pods of a manifest whose digest is ``broken`` fail on every node. While ``pulling`` says how far they are,
    agents start nothing new. With a ``port`` above 0 they say that pods listen there, as ``http``.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._written: dict[Place, tuple[int, str]] = {}
        self.sick: set[str] = set()
        self.deaf: set[str] = set()
        self.broken: set[str] = set()
        self.pulling = ""
        self.sick_since = 0.0
        self.port = 0

    async def run(self) -> None:
        """Act until cancelled, a few times a second.

        Raises:
            TimeoutError: a round took half as long as a test waits; its traceback says where it hangs.
        """
        while True:
            async with asyncio.timeout(LIMIT / 2):
                await self._round()
            await asyncio.sleep(0.05)

    async def _round(self) -> None:
        """Say all news at once: pods that fall ill together must not seem to do so one by one."""
        keys = self._cluster.keys
        found = await self._cluster.entries(keys.tree("intent"))
        wanted = {keys.intent_parts(key): entry for key, entry in found.items()}
        told = {place: reality for place, entry in wanted.items() if (reality := self._news(place, entry))}
        gone = [place for place in self._written.keys() - wanted.keys() if place[0] not in self.deaf]
        writes = [operations.put(keys.reality(*place), codec.encode(each)) for place, each in told.items()]
        await self._cluster.write([*writes, *(operations.delete(keys.reality(*place)) for place in gone)])
        for place, reality in told.items():
            if reality.phase == "running":
                self._written[place] = (reality.intent, reality.health.state)
        for place in gone:
            del self._written[place]

    def _news(self, place: Place, entry: Entry) -> Reality | None:
        """What an agent says of a pod now, if that is new."""
        intent = codec.decode(Intent, entry.value, entry.key)
        sick = place[0] in self.sick or intent.manifest in self.broken
        state: HealthState = "critical" if sick else "passing"
        if place[0] in self.deaf or self._written.get(place) == (entry.modify_index, state):
            return None
        if self.pulling:
            return Reality(
                manifest=intent.manifest, owner=intent.owner, phase="starting", preparing=self.pulling
            )
        now = CLOCK.now()
        return Reality(
            manifest=intent.manifest,
            owner=intent.owner,
            started=now,
            intent=entry.modify_index,
            health=Health(state, self.sick_since or now),
            ports={"http": self.port} if self.port else {},
        )


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
