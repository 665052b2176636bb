"""Two small trees that begin alike share one query, and each is proven by itself (R20, R23)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from store import codec, families
from store.cache import PrefixCache
from store.keys import Keys
from store.registration import register_cluster
from tests.unit.store.cache.world import Client, Thing
from tests.virtual import SeededIds, VirtualClock

KEYS = Keys("t/")


class Pair:
    """The trees of farms and freezes, whose names begin alike."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.client = Client(self.clock)
        self.restores = 0

    async def set_up(self) -> None:
        cluster = await register_cluster(self.client.real, KEYS, SeededIds())
        self.first, self.second = (
            PrefixCache[Thing](
                self.client,  # type: ignore[arg-type]
                KEYS,
                family,
                Thing,
                cluster=cluster,
                clock=self.clock,
                rng=random.Random(1),
                on_restore=self.restored,
            )
            for family in ("farms", "failsafe")
        )
        self.first.lead(self.second, "t/fa")

    def restored(self) -> None:
        self.restores += 1

    async def put(self, family: str, name: str, count: int) -> None:
        await self.client.real.put(KEYS.record(family, name), codec.encode(Thing(count)))
        await self.clock.settle()

    @property
    def seen(self) -> list[dict[str, int]]:
        return [
            {KEYS.last_part(key): stored.record.count for key, stored in cache.entries.items()}
            for cache in (self.first, self.second)
        ]


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.set_up()
    tasks = [asyncio.create_task(each.run()) for each in (made.second, made.first)]
    await made.clock.settle()
    try:
        yield made
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_r23_one_query_brings_two_trees_and_nothing_else() -> None:
    async with pair() as made:
        await made.put("farms", "a", 1)
        await made.put("failsafe", "rcs", 2)
        await made.put("fable", "x", 3)
        assert made.seen == [{"a": 1}, {"rcs": 2}]
        assert made.first.parked() + made.second.parked() == 1
        assert {prefix for prefix, _ in made.client.lists} == {"t/fa"}
        await made.client.real.delete(KEYS.record("failsafe", "rcs"))
        await made.clock.settle()
        assert made.seen == [{"a": 1}, {}]
        assert made.restores == 0


async def test_r20_each_of_two_trees_is_proven_by_its_own_sentinel() -> None:
    async with pair() as made:
        await made.put("farms", "a", 1)
        await made.put("failsafe", "rcs", 2)
        await made.client.real.delete(KEYS.tree("failsafe"), recurse=True)
        await made.put("farms", "a", 5)
        await made.clock.advance(1.0)
        assert made.second.doubt
        assert not made.first.doubt
        assert made.seen == [{"a": 5}, {"rcs": 2}]
        cluster = msgspec.json.decode((await made.client.real.read(KEYS.cluster)).value)  # type: ignore[union-attr]
        await made.client.real.put(KEYS.sentinel(KEYS.tree("failsafe")), msgspec.json.encode(cluster))
        await made.clock.advance(10.0)
        assert not made.second.doubt
        assert made.seen == [{"a": 5}, {}]


async def test_r15_a_barrier_of_either_tree_and_its_own_commits_stay() -> None:
    async with pair() as made:
        await made.put("farms", "a", 1)
        await made.put("failsafe", "rcs", 2)
        await made.put("farms", "a", 3)
        for each in (made.first, made.second):
            waiting = asyncio.create_task(each.barrier())
            await made.clock.settle()
            await waiting
        assert made.seen == [{"a": 3}, {"rcs": 2}]
        assert made.first.index == made.second.index
        made.second.wrote(KEYS.record("failsafe", "rcs"), Thing(9), made.second.index + 5)
        await made.put("farms", "a", 4)
        assert made.seen == [{"a": 4}, {"rcs": 9}], "an answer of before the commit does not undo it"


async def test_r23_no_answer_of_before_is_taken_after_all_is_read_again() -> None:
    async with pair() as made:
        await made.put("failsafe", "rcs", 2)
        late = made.client.keep_next()
        await made.put("farms", "a", 1)  # brings the parked query back; the next one's answer is kept
        await made.put("farms", "a", 2)
        await late.taken.wait()
        forgetting = asyncio.create_task(made.second.begin_anew())
        await made.clock.settle()
        await forgetting
        assert not late.arrive.is_set()
        await made.clock.advance(1.0)
        assert made.second.ready.is_set(), "the shared query was sent again"
        late.arrive.set()
        await made.clock.settle()
        assert made.seen == [{"a": 2}, {"rcs": 2}]


def test_no_other_family_begins_as_those_that_share_a_query() -> None:
    for together in families.together():
        beginning = together[0].query
        alike = [name for name in families.FAMILIES if name.startswith(beginning)]
        assert sorted(alike) == sorted(family.name for family in together)
        assert len(together) > 1
