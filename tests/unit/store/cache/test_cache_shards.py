"""A large tree is watched in sixteen shards (R20, R23)."""

from __future__ import annotations

import asyncio

import pytest

from store import codec
from store.cache import LONGEST
from store.errors import NotRegistered, StoreUnavailable
from store.tree import SPLIT_ABOVE
from tests.unit.store.cache.world import KEYS, Thing, filled, key, names, unchanged


async def test_r23_a_tree_that_is_large_already_is_never_read_whole() -> None:
    world, whole = await filled(3 * SPLIT_ABOVE, sharded=True)
    async with world.running():
        assert world.cache.parked() == 16
        assert set(world.seen) == world.news == set(whole)
        assert (KEYS.tree("rcs"), 0) not in world.client.lists


async def test_a_look_that_fails_leaves_the_asking_to_the_query() -> None:
    world, whole = await filled(20, sharded=True)
    world.client.error = StoreUnavailable("no")
    async with world.running():
        assert world.cache.error is world.client.error
        world.client.error = None
        await world.clock.advance(1.0)
        assert set(world.seen) == set(whole)


async def test_r23_a_grown_tree_splits_into_sixteen_and_stays_whole() -> None:
    world, whole = await filled(SPLIT_ABOVE - 20, sharded=True)
    async with world.running():
        assert world.cache.parked() == 1
        more = names(SPLIT_ABOVE + 50)[SPLIT_ABOVE - 20 :]
        for name in more:
            await world.client.real.put(key(name), codec.encode(Thing(0)))
        whole += more
        await world.clock.advance(2 * LONGEST)
        assert world.cache.parked() == 16
        assert set(world.seen) == set(whole)
        assert world.news == set(whole)
        assert world.cache.doubt is None
        before = len(world.client.lists)
        await world.put(whole[3], 1)
        await world.delete(whole[5])
        await world.clock.settle()
        assert world.news == {whole[3], whole[5]}
        assert whole[5] not in world.seen
        asked = {prefix for prefix, _ in world.client.lists[before:]}
        assert asked <= {KEYS.tree("rcs") + whole[3][0], KEYS.tree("rcs") + whole[5][0]}


@pytest.mark.parametrize("pause", [0.0, 0.1])
async def test_r23_the_queries_of_a_tree_share_the_pause_of_one(pause: float) -> None:
    """While all shards change, sixteen short pauses at once would be no pause for the store."""
    world, _ = await filled(3 * SPLIT_ABOVE, sharded=True, pause=pause)
    shards = [f"{digit:x}" + "0" * 15 for digit in range(16)]
    async with world.running():
        await world.clock.advance(60.0)
        before = len(world.client.lists)
        for name in shards:
            await world.put(name, 0)
        await world.clock.settle()
        assert {world.seen[name] for name in shards} == {0}, "the first change of each shard is seen at once"
        for count in range(1, 100):
            for name in shards:
                await world.put(name, count)
            await world.clock.advance(0.05)
        assert len(world.client.lists) - before <= 16 * (5 / LONGEST + 2)
        await world.clock.advance(LONGEST)
        assert {world.seen[name] for name in shards} == {99}


async def test_a_split_is_no_doubt() -> None:
    """A tree that is being split was read a moment ago: nobody may freeze over that."""
    world, _ = await filled(SPLIT_ABOVE - 20, sharded=True)
    doubts = set()
    world.cache.subscribe(lambda _: doubts.add(world.cache.doubt))
    running = asyncio.create_task(world.cache.run())
    try:
        await world.clock.settle()
        assert world.cache.parked() == 1
        for name in (f"{number:016x}" for number in range(40)):
            await world.client.real.put(key(name), codec.encode(Thing(0)))
        while world.cache.parked() == 1:
            await asyncio.sleep(0)
        for _ in range(200):
            doubts.add(world.cache.doubt)
            await asyncio.sleep(0)
        assert doubts == {None}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_r20_one_doubtful_shard_makes_the_tree_doubtful_and_keeps_its_entries() -> None:
    world, whole = await filled(SPLIT_ABOVE + 50, sharded=True)
    async with world.running():
        shard = KEYS.tree("rcs") + whole[0][0]
        with unchanged(world):
            await world.client.real.delete(shard, recurse=True)
            await world.clock.settle()
        assert world.cache.doubt is not None
        others = next(name for name in whole if name[0] != whole[0][0])
        await world.cache.barrier([key(others)])
        with pytest.raises(NotRegistered):
            await world.cache.barrier([key(whole[0])])
