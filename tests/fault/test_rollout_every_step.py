"""A farm killed or stopped at exactly the k-th transaction of a rollout of 20 pods, for every k, both ways.

The transaction is lost before it arrives, is carried out and never answered, or arrives when another farm has
long gone on. Whatever becomes of it: the other farm comes to the same end, and no version of the store that
any transaction made breaks a rule. So as not to wait for Consul's twice-the-TTL at each k, the cases end the
session themselves, as Consul would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pytest

from farmd.rollout import commands
from farmd.services import commands as services
from store import codec, operations
from store.intent import Intent
from store.keys import is_sentinel
from store.policies import Policy, Stage
from store.reality import Health, Reality
from store.rollouts import KIND
from tests.fault.farm_process import FarmProcess, Nursery
from tests.fault.invariants import violations
from tests.fault.rig import came, every_k
from tests.fault.versions import Served, audits, broken, versions
from tests.fleet import CLOCK, Cluster, client_of, cluster_on, eventually, farm_on, in_time
from tests.mortal import bury
from tests.proxy import Hold, Proxy, Seen
from tests.rolling import FIRST, KINDS, SECOND, Rolling

REPLICAS = 20
AT_ONCE = 6
STEADY = Policy(min_healthy_time=0.0, progress_deadline=300.0)
HELD = Stage(to="100%", approve=True)


@dataclass(frozen=True)
class Way:
    """A policy; and if it goes back, what the rollout says before that."""

    policy: Policy
    back: str = ""


def way(back: str = "", **fields: Any) -> Way:
    return Way(msgspec.structs.replace(STEADY, **fields), back)


WAYS = {
    "forward": way(minimum=14, stages=[2, "50%", "100%"]),
    "back": way("approve web", minimum=14, stages=["70%", HELD]),
    "availability": way(minimum=20, strategy="availability", ratio=40),
    "availability, back": way("approve web", minimum=20, strategy="availability", stages=["70%", HELD]),
    "resourceutil": way(minimum=12, strategy="resourceutil", ratio=40),
    "resourceutil, back": way("approve web", minimum=17, strategy="resourceutil", stages=["40%", HELD]),
    "blue-green": way(minimum=20, strategy="blue-green", keep_old=0.1),
    "blue-green, back": way("the service is switched", minimum=20, strategy="blue-green", keep_old=600.0),
}

Fate = Literal["killed, never sent", "killed, never answered", "stopped, sent late", "stopped, answered late"]
FATES: tuple[Fate, ...] = (
    "killed, never sent",
    "killed, never answered",
    "stopped, sent late",
    "stopped, answered late",
)


@dataclass
class Agents:
    """All agents as one, healthy; ``served`` is what they wrote, with the indexes of their commits."""

    cluster: Cluster
    served: Served = field(default_factory=list)

    async def run(self) -> None:
        keys, client, index = self.cluster.keys, self.cluster.client, 0
        known = dict[tuple[str, str], int]()
        while True:
            page = await client.list(keys.tree("intent"), index=index, wait=30.0)
            index = page.index
            found = {keys.intent_parts(raw.key): raw for raw in page.items if not is_sentinel(raw.key)}
            news = {place: raw for place, raw in found.items() if known.get(place) != raw.modify_index}
            gone = known.keys() - found.keys()
            intents = {place: codec.decode(Intent, raw.decoded(), raw.key) for place, raw in news.items()}
            writes = [
                operations.put(keys.reality(*place), codec.encode(_healthy(intent, news[place].modify_index)))
                for place, intent in intents.items()
            ]
            writes += [operations.delete(keys.reality(*place)) for place in gone]
            if not writes:
                continue
            written = await client.transaction(writes)
            at = max((entry.modify_index for entry in written), default=page.index)
            self.served += [(at, place, intent.owner, intent.manifest) for place, intent in intents.items()]
            self.served += [(at, place, "", "") for place in gone]
            known = {place: raw.modify_index for place, raw in found.items()}


def _healthy(intent: Intent, index: int) -> Reality:
    now = CLOCK.now()
    return Reality(
        manifest=intent.manifest, owner=intent.owner, started=now, intent=index, health=Health("passing", now)
    )


@dataclass
class Case:
    """One rollout, and every transaction that anybody sent for it."""

    rolling: Rolling
    agents: Agents
    hand: Proxy
    front: Proxy
    victim: FarmProcess

    @property
    def sent(self) -> list[Seen]:
        return self.hand.requests + self.front.requests

    async def begin(self, way: Way, k: int, answer: bool) -> tuple[str, Hold]:
        """Begin the rollout, or its way back, whose k-th transaction is held."""
        await self.rolling.prepare(REPLICAS)
        if way.policy.strategy == "blue-green":
            call = self.rolling.call
            await self.rolling.say(await services.create(call, "shop", "http", ["web"]))
        if way.back:
            ident = await self.rolling.update(SECOND, way.policy)
            await self.rolling.status(ident, way.back)
            hold = self.front.hold(self._moves, k, answer=answer)
            await self.rolling.say(await commands.revert(self.rolling.call, "web"))
        else:
            hold = self.front.hold(self._moves, k, answer=answer)
            ident = await self.rolling.update(SECOND, way.policy)
        return ident, hold

    def _moves(self, seen: Seen) -> bool:
        return any(each.kind == KIND for each in audits(self.rolling.cluster.keys, seen).values())

    async def ended(self, ident: str, way: Way) -> None:
        """It is over, once, and all is as it should be."""
        over = await self.rolling.ended(ident)
        assert over.outcome == ("reverted" if way.back else "done")
        await self.rolling.whole(FIRST if way.back else SECOND, REPLICAS)

    async def judge(self, ident: str, way: Way) -> None:
        """No version breaks a rule, the end was written once and so is the history."""
        keys, dump = self.rolling.cluster.keys, await self.rolling.cluster.dump()
        assert violations(dump) == []
        assert list(broken(keys, versions(dump, self.sent), self.agents.served)) == []
        ends = [a.action for _, a in dump.audits if a.id == ident and a.action.endswith(("done", "reverted"))]
        assert len(ends) == 1
        switches = sum(a.id == ident and a.action == "rollout.switch" for _, a in dump.audits)
        assert switches == (way.policy.strategy == "blue-green") * (2 if way.back else 1)
        assert len(await self.rolling.cluster.entries(keys.history("web", ""))) == 1


@asynccontextmanager
async def case_on(consul: str, nursery: Nursery) -> AsyncIterator[Case]:
    async with AsyncExitStack() as stack:
        hand, front = [await stack.enter_async_context(Proxy(consul)) for _ in range(2)]
        cluster = await stack.enter_async_context(cluster_on(hand.address))
        agents = Agents(cluster)
        acting = asyncio.create_task(agents.run())
        victim = nursery.farm(front.address, "mortal", cluster.keys, kinds=KINDS)
        try:
            yield Case(Rolling(cluster, hand.address), agents, hand, front, victim)
        finally:
            await victim.end()
            acting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acting


async def fallen(k: int, fate: Fate, name: str, consul: str, nursery: Nursery) -> bool:
    """One case; False if the rollout has no k-th transaction."""
    try:
        return await _fallen(k, fate, WAYS[name], consul, nursery)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{fate}, {name}, k={k}: {error}") from error


async def _fallen(k: int, fate: Fate, way: Way, consul: str, nursery: Nursery) -> bool:
    async with case_on(consul, nursery) as case:
        ident, hold = await case.begin(way, k, answer="answered" in fate)
        if not await came(hold, case.ended(ident, way)):
            return False
        cluster, stopped = case.rolling.cluster, fate.startswith("stopped")
        client = client_of(case.hand.address)
        async with farm_on(client, "heir", keys=cluster.keys, kinds=KINDS):
            if stopped:
                case.victim.pause()
            else:
                await case.victim.end()
                hold.drop()
            await bury(cluster)
            await case.ended(ident, way)
            if stopped:
                case.victim.resume()
                hold.release()
                await in_time(hold.finished.wait())
                await _returned(cluster)
                await case.ended(ident, way)
        await case.judge(ident, way)
        await client.close()
    return True


async def _returned(cluster: Cluster) -> None:
    """The stopped farm has noticed, and is a member again."""

    async def so() -> bool:
        return await cluster.client.read(cluster.keys.farm("mortal")) is not None

    await eventually(so, what="the return of the farm that was stopped")


@pytest.mark.parametrize("name", ["forward", "back"])
@pytest.mark.parametrize("fate", FATES)
async def test_r12_a_farm_that_falls_away_at_any_transaction_changes_nothing_about_the_end(
    consul_dev: str, nursery: Nursery, fate: Fate, name: str
) -> None:
    assert await every_k(lambda k: fallen(k, fate, name, consul_dev, nursery), AT_ONCE) > 4


@pytest.mark.parametrize("name", list(WAYS)[2:])
async def test_r12_nor_does_it_with_another_strategy(consul_dev: str, nursery: Nursery, name: str) -> None:
    """Every transaction; the fates take turns."""
    turn = len(name)
    steps = await every_k(
        lambda k: fallen(k, FATES[(turn + k) % len(FATES)], name, consul_dev, nursery), AT_ONCE
    )
    assert steps > 4
