"""What workers note down wakes claiming only where an item may be tried again sooner (R10)."""

from __future__ import annotations

import random

import pytest

from farmd.farm.supervisor import Backoffs
from store import codec
from store.cache import PrefixCache
from store.keys import Keys
from store.registration import register_cluster
from store.work import Work
from tests.virtual import SeededIds, VirtualClock, embedded_client

KEYS = Keys()


class Scene:
    """A cache of ``work/`` on an embedded store; ``woken`` counts what claiming was told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.client = embedded_client(self.clock)
        self.woken = 0

    async def set_up(self) -> None:
        cluster = await register_cluster(self.client, KEYS, SeededIds())
        self.work = PrefixCache[Work](
            self.client,
            KEYS,
            "work",
            Work,
            cluster=cluster,
            clock=self.clock,
            rng=random.Random(1),
            keep_raw=True,
        )
        Backoffs(self.work, self.clock, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def noted(self, work: Work | None) -> int:
        """How often claiming was woken by this record, or by its end."""
        before, key = self.woken, KEYS.work("rcs", "1")
        if work is None:
            await self.client.delete(key)
        else:
            await self.client.put(key, codec.encode(work))
        await self.work.barrier()
        return self.woken - before


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.set_up()
    return scene


async def test_moves_and_verdicts_wake_no_claiming(scene: Scene) -> None:
    assert await scene.noted(Work(lost_since=5.0)) == 0
    assert await scene.noted(Work(transfer_not_before=9.0)) == 0
    assert await scene.noted(None) == 0


async def test_r10_a_rest_wakes_claiming_when_it_is_called_off_or_cut_short(scene: Scene) -> None:
    now = scene.clock.now()
    assert await scene.noted(Work(crashes=2, not_before=now + 60)) == 0
    assert await scene.noted(Work(crashes=3, not_before=now + 90)) == 0
    assert await scene.noted(Work(crashes=3, not_before=now + 30)) == 1
    assert await scene.noted(None) == 1
    assert await scene.noted(Work(crashes=3, not_before=now - 1)) == 0
