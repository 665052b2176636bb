"""A farm killed or stopped at exactly the k-th transaction of a rollout of 20 pods, for every k, both ways.

The transaction is lost before it arrives, is carried out and never answered, or arrives when another farm has
long gone on. Whatever becomes of it: the other farm comes to the same end, and no version of the store that
any transaction made breaks a rule. So as not to wait for Consul's twice-the-TTL at each k, the cases end the
session themselves, as Consul would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import pytest

from farmd.rollout import commands
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
POLICY = Policy(
    minimum=14, stages=[2, "50%", Stage(to="100%")], min_healthy_time=0.0, progress_deadline=300.0
)
HALF = Policy(minimum=14, stages=["70%", Stage(to="100%", approve=True)], min_healthy_time=0.0)

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
            at = max(entry.modify_index for entry in await client.transaction(writes) or ())
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

    async def begin(self, back: bool, k: int, answer: bool) -> tuple[str, Hold]:
        """Begin the rollout, or its way back, whose k-th transaction is held."""
        await self.rolling.prepare(REPLICAS)
        if back:
            ident = await self.rolling.update(SECOND, HALF)
            await self.rolling.status(ident, "approve")
            hold = self.front.hold(self._moves, k, answer=answer)
            await self.rolling.say(await commands.revert(self.rolling.call, "web"))
        else:
            hold = self.front.hold(self._moves, k, answer=answer)
            ident = await self.rolling.update(SECOND, POLICY)
        return ident, hold

    def _moves(self, seen: Seen) -> bool:
        return any(each.kind == KIND for each in audits(self.rolling.cluster.keys, seen).values())

    async def ended(self, ident: str, back: bool) -> None:
        """It is over, once, and all is as it should be."""
        over = await self.rolling.ended(ident)
        assert over.outcome == ("reverted" if back else "done")
        await self.rolling.whole(FIRST if back else SECOND, REPLICAS)

    async def judge(self, ident: str) -> None:
        """No version breaks a rule, the end was written once and so is the history."""
        keys, dump = self.rolling.cluster.keys, await self.rolling.cluster.dump()
        assert violations(dump) == []
        assert list(broken(keys, versions(dump, self.sent), self.agents.served)) == []
        ends = [a.action for _, a in dump.audits if a.id == ident and a.action.endswith(("done", "reverted"))]
        assert len(ends) == 1
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
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
            await victim.end()


async def fallen(k: int, fate: Fate, back: bool, consul: str, nursery: Nursery) -> bool:
    """One case; False if the rollout has no k-th transaction."""
    try:
        return await _fallen(k, fate, back, consul, nursery)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{fate}, {'back' if back else 'forward'}, k={k}: {error}") from error


async def _fallen(k: int, fate: Fate, back: bool, consul: str, nursery: Nursery) -> bool:
    async with case_on(consul, nursery) as case:
        ident, hold = await case.begin(back, k, answer="answered" in fate)
        if not await came(hold, case.ended(ident, back)):
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
            await case.ended(ident, back)
            if stopped:
                case.victim.resume()
                hold.release()
                await in_time(hold.finished.wait())
                await _returned(cluster)
                await case.ended(ident, back)
        await case.judge(ident)
        await client.close()
    return True


async def _returned(cluster: Cluster) -> None:
    """The stopped farm has noticed, and is a member again."""

    async def so() -> bool:
        return await cluster.client.read(cluster.keys.farm("mortal")) is not None

    await eventually(so, what="the return of the farm that was stopped")


@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
@pytest.mark.parametrize("fate", FATES)
async def test_r12_a_farm_that_falls_away_at_any_transaction_changes_nothing_about_the_end(
    consul_dev: str, nursery: Nursery, fate: Fate, back: bool
) -> None:
    assert await every_k(lambda k: fallen(k, fate, back, consul_dev, nursery), AT_ONCE) > 4
