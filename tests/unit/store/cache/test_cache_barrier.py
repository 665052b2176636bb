"""A barrier is a read that began after the call, and reads no more than it needs (R15, R20, R23)."""

from __future__ import annotations

import asyncio

import pytest

from store import codec, operations
from store.cache import COMPARED_ABOVE, LARGE, PAUSE_AN_ENTRY
from store.errors import NotRegistered, StoreUnavailable
from store.tree import SPLIT_ABOVE
from tests.unit.store.cache.world import KEYS, Thing, World, filled, key, names


async def test_r15_a_barrier_is_a_read_that_started_after_the_call(world: World) -> None:
    async with world.running():
        late = world.client.keep_next()
        first = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        second = asyncio.create_task(world.cache.barrier())
        third = asyncio.create_task(world.cache.barrier())
        await world.clock.settle()
        assert not second.done()
        before = len(world.client.lists)
        late.arrive.set()
        await asyncio.gather(first, second, third)
        reads = [asked for asked in world.client.lists[before:] if asked[1] == 0]
        assert len(reads) == 1, "those who came while one was under way share the next"


async def test_r15_a_barrier_that_failed_raises_for_everybody(world: World) -> None:
    async with world.running():
        world.client.error = StoreUnavailable("no")
        results = await asyncio.gather(*[world.cache.barrier() for _ in range(3)], return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        world.client.error = None
        await world.cache.barrier()


async def test_r15_a_cancelled_caller_takes_the_barrier_from_nobody(world: World) -> None:
    async with world.running():
        late = world.client.keep_next()
        first = asyncio.create_task(world.cache.barrier())
        second = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        first.cancel()
        await world.clock.settle()
        late.arrive.set()
        await second
        assert first.cancelled()


async def test_r15_a_barrier_reads_the_values_of_many_records_only_if_one_changed() -> None:
    """A take-over would otherwise read all pods of the fleet again, in each farm."""
    world, whole = await filled(COMPARED_ABOVE + 9, pause=3600.0)
    tree = KEYS.tree("rcs")
    async with world.running():

        async def asked() -> list[tuple[str, int]]:
            """What a barrier asks for; no answer of the parked query comes first."""
            world.client.lists.clear()
            await world.cache.barrier()
            return [each for each in world.client.lists if each[1] <= 0]

        keys_alone, values_too = [(tree, -1)], [(tree, -1), (tree, 0)]
        assert await asked() == keys_alone
        await world.client.real.put(key(whole[0]), codec.encode(Thing(7)))
        assert await asked() == values_too
        assert world.seen[whole[0]] == 7
        assert await asked() == keys_alone
        await world.client.real.delete(key(whole[1]))
        assert await asked() == values_too
        assert whole[1] not in world.seen
        index = (await world.client.real.transaction([operations.put(key(whole[2]), b"{}")]))[0].modify_index
        world.cache.wrote(key(whole[2]), Thing(3), index)
        assert await asked() == values_too, "what this process wrote is not proven by its own copy"


async def test_r20_a_barrier_of_many_records_without_their_sentinel_raises() -> None:
    world, _ = await filled(COMPARED_ABOVE + 9, pause=3600.0)
    async with world.running():
        await world.client.real.delete(KEYS.sentinel(KEYS.tree("rcs")))
        for _ in range(2):
            with pytest.raises(NotRegistered):
                await world.cache.barrier()


async def test_r23_the_more_an_answer_holds_the_longer_until_the_next(world: World) -> None:
    """A thousand agents that come back make a thousand answers, each with all of them."""
    for name in names(LARGE):
        await world.put(name, 0)
    async with world.running():
        await world.clock.advance(1.0)
        await world.put("a", 1)
        await world.clock.settle()
        assert world.seen["a"] == 1, "the first change after a quiet time is seen at once"
        before = len(world.client.lists)
        for count in range(50):
            await world.put("a", count)
            await world.clock.advance(0.001)
        assert len(world.client.lists) <= before + 2
        await world.clock.advance(2 * LARGE * PAUSE_AN_ENTRY)
        assert world.seen["a"] == 49


async def test_r15_a_barrier_that_waited_for_the_split_reads_all_the_same() -> None:
    world, whole = await filled(SPLIT_ABOVE - 20, sharded=True)
    async with world.running():
        assert world.cache.parked() == 1
        late = world.client.keep_next()
        first = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        for name in names(SPLIT_ABOVE + 1)[SPLIT_ABOVE - 20 :]:
            await world.client.real.put(key(name), codec.encode(Thing(0)))
        await world.clock.settle()
        second = asyncio.create_task(world.cache.barrier([key(whole[0])]))
        await world.clock.settle()
        assert world.cache.parked() == 1, "the split waits for the barrier that is under way"
        world.client.error = StoreUnavailable("no")
        late.arrive.set()
        await first
        with pytest.raises(StoreUnavailable):
            await second
        assert world.cache.parked() == 16


async def test_r15_a_barrier_reads_only_the_shards_that_it_needs() -> None:
    world, whole = await filled(SPLIT_ABOVE + 50, sharded=True)
    async with world.running():
        before = len(world.client.lists)
        await world.cache.barrier([key(whole[0])])
        assert world.client.lists[before:] == [(KEYS.tree("rcs") + whole[0][0], 0)]


async def test_r15_no_read_of_a_barrier_that_failed_brings_an_answer_afterwards() -> None:
    world, _ = await filled(SPLIT_ABOVE + 50, sharded=True)
    async with world.running():
        first, second = world.client.keep_next(), world.client.keep_next()
        barrier = asyncio.create_task(world.cache.barrier())
        await first.taken.wait()
        await second.taken.wait()
        world.client.error = StoreUnavailable("no")
        second.arrive.set()
        with pytest.raises(StoreUnavailable):
            await barrier
        world.client.error = None
        gone = next(name for name in world.seen if name.startswith("0"))
        await world.client.real.delete(key(gone))
        await world.cache.begin_anew()
        await world.cache.ready.wait()
        assert gone not in world.seen
        first.arrive.set()
        await world.clock.settle()
        assert gone not in world.seen, "an answer of before brings back what was deleted"
