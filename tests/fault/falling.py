"""A world in which a farm falls away at exactly the k-th transaction of some work, and another one goes on.

The transaction is lost before it arrives, is carried out and never answered, or arrives when another farm has
long gone on. So as not to wait for Consul's twice-the-TTL at each k, the cases end the session themselves, as
Consul would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from store import codec, operations
from store.keys import is_sentinel
from store.pods import Place
from store.reality import Health, Intent, Reality
from tests.fault.farm_process import FarmProcess, Nursery
from tests.fault.rig import came
from tests.fault.versions import Served, audits
from tests.fleet import CLOCK, Cluster, client_of, cluster_on, eventually, farm_on, in_time
from tests.mortal import bury
from tests.proxy import Hold, Proxy, Seen

Fate = Literal["killed, never sent", "killed, never answered", "stopped, sent late", "stopped, answered late"]
FATES: tuple[Fate, ...] = (
    "killed, never sent",
    "killed, never answered",
    "stopped, sent late",
    "stopped, answered late",
)

Tell = Callable[[Place, Intent, int], Reality]
"""What an agent says of a pod, by the place, the intent and its index."""


def healthy(_: Place, intent: Intent, index: int) -> Reality:
    """It runs, and passes its check."""
    now = CLOCK.now()
    return Reality(
        manifest=intent.manifest, owner=intent.owner, started=now, intent=index, health=Health("passing", now)
    )


@dataclass
class Agents:
    """All agents as one. ``served`` is what they wrote of pods that serve, with the indexes of their commits;
    ``started`` each intent that they acted on.
    """

    cluster: Cluster
    tell: Tell = healthy
    served: Served = field(default_factory=list)
    started: list[tuple[Place, Intent]] = field(default_factory=list)

    async def run(self) -> None:
        keys, client, index = self.cluster.keys, self.cluster.client, 0
        known = dict[Place, int]()
        while True:
            page = await client.list(keys.tree("intent"), index=index, wait=30.0)
            index = page.index
            if page.unchanged:  # it has no items then: that says nothing of the intents
                continue
            found = {keys.intent_parts(raw.key): raw for raw in page.items if not is_sentinel(raw.key)}
            news = {place: raw for place, raw in found.items() if known.get(place) != raw.modify_index}
            gone = known.keys() - found.keys()
            intents = {place: codec.decode(Intent, raw.decoded(), raw.key) for place, raw in news.items()}
            told = {
                place: self.tell(place, each, news[place].modify_index) for place, each in intents.items()
            }
            writes = [
                operations.put(keys.reality(*place), codec.encode(each)) for place, each in told.items()
            ]
            writes += [operations.delete(keys.reality(*place)) for place in gone]
            if not writes:
                continue
            written = await client.transaction(writes)
            self.started += intents.items()
            at = max((entry.modify_index for entry in written), default=page.index)
            for place, each in told.items():
                serves = each.phase == "running" and each.health.state == "passing"
                self.served.append((at, place, each.owner, each.manifest) if serves else (at, place, "", ""))
            self.served += [(at, place, "", "") for place in gone]
            known = {place: raw.modify_index for place, raw in found.items()}


@dataclass
class World:
    """A cluster with agents and one farm process, and every transaction that anybody sent.

    ``hand`` is the way of people, of agents and of the other farm to Consul, ``front`` that of the farm that
    falls away.
    """

    cluster: Cluster
    kinds: Sequence[str]
    agents: Agents
    hand: Proxy
    front: Proxy
    victim: FarmProcess

    @property
    def sent(self) -> list[Seen]:
        return self.hand.requests + self.front.requests

    def hold(self, kind: str, k: int, *, answer: bool, since: str = "") -> Hold:
        """Hold the k-th transaction of the farm from now on whose audit record is of this kind.

        ``since``: the action of the first one that counts.
        """
        begun = not since

        def moves(seen: Seen) -> bool:
            nonlocal begun
            actions = [each.action for each in audits(self.cluster.keys, seen).values() if each.kind == kind]
            begun = begun or since in actions
            return begun and bool(actions)

        return self.front.hold(moves, k, answer=answer)

    async def falls(self, fate: Fate, hold: Hold, ended: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """The farm meets its fate at what is held, and another comes to the end; how many came of these."""
        if not await came(hold, ended()):
            return hold.count
        client = client_of(self.hand.address)
        async with farm_on(client, "heir", keys=self.cluster.keys, kinds=self.kinds):
            if fate.startswith("stopped"):
                self.victim.pause()
            else:
                await self.victim.end()
                hold.drop()
            await bury(self.cluster)
            await ended()
            if fate.startswith("stopped"):
                self.victim.resume()
                hold.release()
                await in_time(hold.finished.wait())
                await self._returned()
                await ended()
        await client.close()
        return hold.count

    async def story(self, kind: str) -> str:
        """What farms did, and what they say of that kind of work."""
        keys = self.cluster.keys
        told = await self.cluster.entries(keys.tree(f"status/{kind}"))
        lines = [f"{audit.actor} {audit.action} {audit.reason}" for audit in await self.cluster.audits()]
        return "\n".join([*lines[-20:], *(f"{entry.value!r}" for entry in told.values())])

    async def _returned(self) -> None:
        """The stopped farm has noticed, and is a member again."""

        async def so() -> bool:
            return await self.cluster.client.read(self.cluster.keys.farm("mortal")) is not None

        await eventually(so, what="the return of the farm that was stopped")


@asynccontextmanager
async def world_on(
    consul: str, nursery: Nursery, kinds: Sequence[str], tell: Tell = healthy
) -> AsyncIterator[World]:
    """A world for the length of a ``with`` block."""
    async with AsyncExitStack() as stack:
        hand, front = [await stack.enter_async_context(Proxy(consul)) for _ in range(2)]
        cluster = await stack.enter_async_context(cluster_on(hand.address))
        agents = Agents(cluster, tell)
        acting = asyncio.create_task(agents.run())
        victim = nursery.farm(front.address, "mortal", cluster.keys, kinds=kinds)
        try:
            yield World(cluster, kinds, agents, hand, front, victim)
        finally:
            await victim.end()
            acting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acting
