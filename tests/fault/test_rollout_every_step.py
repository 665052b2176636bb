"""A farm killed or stopped at exactly the k-th transaction of a rollout of 20 pods, both ways.

The first transaction, the last and a tenth of the others; ``tests/stateful`` takes each of them. Whatever
becomes of the transaction: the other farm comes to the same end, and no version of the store that any
transaction made breaks a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from farmd.rollout import commands
from farmd.services import commands as services
from store.policies import Policy, Stage
from store.rollouts import KIND
from tests.fault.falling import FATES, Fate, World, world_on
from tests.fault.farm_process import Nursery
from tests.fault.invariants import violations
from tests.fault.rig import a_tenth, every_k
from tests.fault.versions import broken, versions
from tests.proxy import Hold
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


@dataclass
class Case:
    """One rollout, and every transaction that anybody sent for it."""

    rolling: Rolling
    world: World

    async def begin(self, way: Way, k: int, answer: bool) -> tuple[str, Hold]:
        """Begin the rollout, or its way back, whose k-th transaction is held."""
        await self.rolling.prepare(REPLICAS)
        if way.policy.strategy == "blue-green":
            call = self.rolling.call
            await self.rolling.say(await services.create(call, "shop", "http", ["web"]))
        if way.back:
            ident = await self.rolling.update(SECOND, way.policy)
            await self.rolling.status(ident, way.back)
            hold = self.world.hold(KIND, k, answer=answer)
            await self.rolling.say(await commands.revert(self.rolling.call, "web"))
        else:
            hold = self.world.hold(KIND, k, answer=answer)
            ident = await self.rolling.update(SECOND, way.policy)
        return ident, hold

    async def ended(self, ident: str, way: Way) -> None:
        """It is over, once, and all is as it should be."""
        over = await self.rolling.ended(ident)
        assert over.outcome == ("reverted" if way.back else "done")
        await self.rolling.whole(FIRST if way.back else SECOND, REPLICAS)

    async def judge(self, ident: str, way: Way) -> None:
        """No version breaks a rule, the end was written once and so is the history."""
        keys, dump = self.rolling.cluster.keys, await self.rolling.cluster.dump()
        assert violations(dump) == []
        assert list(broken(keys, versions(dump, self.world.sent), self.world.agents.served)) == []
        ends = [a.action for _, a in dump.audits if a.id == ident and a.action.endswith(("done", "reverted"))]
        assert len(ends) == 1
        switches = sum(a.id == ident and a.action == "rollout.switch" for _, a in dump.audits)
        assert switches == (way.policy.strategy == "blue-green") * (2 if way.back else 1)
        assert len(await self.rolling.cluster.entries(keys.history("web", ""))) == 1


async def fallen(k: int, fate: Fate, name: str, consul: str, nursery: Nursery) -> int:
    """One case; how many transactions of the rollout came."""
    try:
        return await _fallen(k, fate, WAYS[name], consul, nursery)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{fate}, {name}, k={k}: {error}") from error


async def _fallen(k: int, fate: Fate, way: Way, consul: str, nursery: Nursery) -> int:
    async with world_on(consul, nursery, KINDS) as world:
        case = Case(Rolling(world.cluster, world.hand.address), world)
        ident, hold = await case.begin(way, k, answer="answered" in fate)
        count = await world.falls(fate, hold, lambda: case.ended(ident, way))
        await case.judge(ident, way)
    return count


@pytest.mark.parametrize("fate", FATES)
async def test_r12_a_farm_that_falls_away_at_any_transaction_changes_nothing_about_the_end(
    consul_dev: str, nursery: Nursery, fate: Fate
) -> None:
    assert await every_k(lambda k: fallen(k, fate, "forward", consul_dev, nursery), AT_ONCE, a_tenth) > 4


@pytest.mark.parametrize("name", list(WAYS)[1:])
async def test_r12_nor_does_it_on_the_way_back_or_with_another_strategy(
    consul_dev: str, nursery: Nursery, name: str
) -> None:
    """The fates take turns."""
    turn = len(name)
    steps = await every_k(
        lambda k: fallen(k, FATES[(turn + k) % len(FATES)], name, consul_dev, nursery), AT_ONCE, a_tenth
    )
    assert steps > 4
