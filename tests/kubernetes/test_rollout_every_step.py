"""A farm that falls away at a packet of a whole rollout of two stages, and another one that finishes it.

``FARMD_EVERY_STEP=1`` tries each packet with each fate; else the first, the last and a tenth of each sort are
tried, as ``FARMD_ROLLOUT_SEED`` chooses. Each write with each fate stands in the model's tests
(``tests/unit/kubernetes/test_progressive_falls.py``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from farmd.kubernetes.install import install
from farmd.runtime.clock import SystemClock
from tests.fault import falling
from tests.fault.farm_process import Nursery
from tests.fault.rig import NEVER
from tests.kubernetes.falling import MATCHES, Fall, Fate, Front, Point, proxies, sampled, tried
from tests.kubernetes.knative import define, playing
from tests.kubernetes.recording import recording
from tests.kubernetes.rollouts import Rollouts
from tests.kubernetes.test_rollout_history import NEW, OLD, kept, pushed
from tests.proxy import Hold

SEED = int(os.environ.get("FARMD_ROLLOUT_SEED", "1"))
WHOLE = os.environ.get("FARMD_EVERY_STEP") == "1"
pytestmark = [
    pytest.mark.xdist_group("kubernetes rollouts"),
    pytest.mark.slow,
    pytest.mark.timeout(3600 if WHOLE else 480),
]
FATES: tuple[Fate, ...] = (*falling.FATES, "cut, sent late")
AT_ONCE, PODS = 6, 2


@dataclass(kw_only=True)
class Case(Front):
    """A service of two pods, and then another template."""

    rollouts: Rollouts
    people: asyncio.Task[None] | None = field(default=None)

    kinds = ("progressive",)

    async def begin(self) -> None:
        """People go on as far as the rollout does."""
        self.people = asyncio.create_task(self._story())

    async def _story(self) -> None:
        rollouts = self.rollouts
        await pushed(rollouts, 1, PODS)
        await rollouts.until("the first revision", lambda: rollouts.rests(OLD, PODS))
        await pushed(rollouts, 2, PODS, 50)

    async def ended(self) -> None:
        """The second revision serves alone, and the first one's bounds are what people gave."""
        assert self.people is not None
        await asyncio.shield(self.people)
        rollouts = self.rollouts
        await rollouts.until("the second revision", lambda: rollouts.rests(NEW, PODS))
        await rollouts.until("no pods of the first", lambda: not rollouts.play.pods(OLD))
        whole = str(PODS), str(PODS)
        await rollouts.until("its bounds", lambda: rollouts.bounds(OLD) == rollouts.bounds(NEW) == whole)

    def judge(self, hold: Hold, fate: Fate) -> None:
        """No version of any object breaks a rule, and no pod was restarted."""
        kept(self.rollouts)


def falls(counts: dict[Point, int]) -> Iterator[Fall]:
    """Where a farm falls, and how."""
    if WHOLE:
        for point, count in counts.items():
            for k, fate in itertools.product(range(1, count + 1), FATES):
                yield Fall(point, k, fate)
        return
    fates = itertools.cycle(FATES)
    for point, k in sampled(counts, SEED):
        yield Fall(point, k, next(fates))


@pytest.mark.parametrize("point", MATCHES)
async def test_whoever_takes_a_rollout_over_at_any_packet_comes_to_the_same_end(
    api: Any,
    consul_dev: str,
    nursery: Nursery,
    connect: Any,
    tmp_path: Path,
    namespace: str,
    point: Point,
) -> None:
    numbers, gate = itertools.count(), asyncio.Semaphore(AT_ONCE)

    async def one(fall: Fall) -> dict[Point, int]:
        async with gate, AsyncExitStack() as stack:
            own = await asyncio.to_thread(api.namespace, f"{namespace}-{next(numbers)}")
            recorded = await stack.enter_async_context(recording(admin, own))
            play = await stack.enter_async_context(playing(admin, own))
            cluster, consul, front = await stack.enter_async_context(proxies(api, consul_dev))
            rollouts = Rollouts(api, play, recorded, cluster, consul_dev, connect)
            return await tried(Case(own, tmp_path, nursery, cluster, consul, front, rollouts=rollouts), fall)

    async with connect(api) as admin:
        await install(admin, (), SystemClock(), progressive=True)
        await define(admin, "1.21.0")
        calm = await one(Fall("writes", NEVER, "killed, never sent"))
        assert calm["writes"] >= 12, "two stages have no fewer writes"
        async with asyncio.TaskGroup() as together:
            for fall in falls(calm):
                if fall.point == point:
                    together.create_task(one(fall))
