"""No older answer hides an own commit, and a restored store is the truth (R15, R23)."""

from __future__ import annotations

import asyncio

from tests.unit.store.cache.world import KEYS, Thing, World, key


async def test_r23a_an_older_answer_does_not_undo_an_own_write(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        late = world.client.keep_next()
        reading = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        index = await world.put("a1", 2)
        world.cache.wrote(key("a1"), Thing(2), index)
        late.arrive.set()
        await reading
        assert world.seen == {"a1": 2}


async def test_r23a_an_older_answer_does_not_lose_an_own_new_record(world: World) -> None:
    async with world.running():
        late = world.client.keep_next()
        reading = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        index = await world.put("a1", 1)
        world.cache.wrote(key("a1"), Thing(1), index)
        late.arrive.set()
        await reading
        assert world.seen == {"a1": 1}
        await world.delete("a1")
        await world.clock.settle()
        assert world.seen == {}, "somebody's later deletion counts"


async def test_r23a_an_older_answer_does_not_resurrect_an_own_deletion(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        late = world.client.keep_next()
        reading = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        await world.delete("a1")
        gone = await world.client.real.list(KEYS.tree("rcs"))
        world.cache.removed(key("a1"), gone.index)
        late.arrive.set()
        await reading
        assert world.seen == {}
        await world.put("a1", 5)
        await world.clock.settle()
        assert world.seen == {"a1": 5}, "a later record under the same key counts"


async def test_a_deletion_known_by_its_last_version_is_not_resurrected_by_that_version(
    world: World,
) -> None:
    index = await world.put("a1", 1)
    async with world.running():
        late = world.client.keep_next()
        reading = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        await world.delete("a1")
        world.cache.removed(key("a1"), index)
        late.arrive.set()
        await reading
        assert world.seen == {}


async def test_an_answer_that_was_overtaken_is_dropped(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        late = world.client.keep_next()
        slow = asyncio.create_task(world.cache.barrier())
        await late.taken.wait()
        await world.put("b2", 2)
        await world.clock.settle()
        assert world.seen == {"a1": 1, "b2": 2}
        late.arrive.set()
        await slow
        assert world.seen == {"a1": 1, "b2": 2}


async def test_own_writes_are_told_only_on_request(world: World) -> None:
    async with world.running():
        world.cache.wrote(key("a1"), Thing(1), 10**6)
        assert world.news == set()
        world.cache.notify({key("a1")})
        assert world.news == {"a1"}


async def test_an_own_write_knows_since_when_its_key_exists(world: World) -> None:
    async with world.running():
        world.cache.wrote(key("a1"), Thing(1), 10**6)
        world.cache.wrote(key("a1"), Thing(2), 10**6 + 5)
        stored = world.cache.get(key("a1"))
        assert stored is not None
        assert (stored.index, stored.create_index) == (10**6 + 5, 10**6)


# -- R23: an index that went back ----------------------------------------------------------------
async def test_r23_after_an_index_reset_older_records_are_the_truth(world: World) -> None:
    await world.put("a1", 1)
    await world.put("b2", 2)
    async with world.running():
        world.client.forged = world.page(3, a1=(2, 9))
        world.told.clear()
        await world.cache.barrier()
        assert world.seen == {"a1": 9}
        assert world.news == {"a1", "b2"}
        assert world.restores > 0


async def test_r23_a_write_after_the_restore_does_not_hide_what_went_back(world: World) -> None:
    await world.put("a1", 1)
    await world.put("b2", 2)
    async with world.running():
        world.client.forged = world.page(10**6, a1=(2, 9), c3=(10**6, 3))
        world.told.clear()
        await world.cache.barrier()
        assert world.seen == {"a1": 9, "c3": 3}
        assert world.news == {"a1", "b2", "c3"}
        assert world.restores > 0


async def test_r23_a_restore_takes_own_commits_back(world: World) -> None:
    before = await world.put("a1", 1)
    await world.put("b2", 2)
    async with world.running():
        world.cache.wrote(key("a1"), Thing(5), 10**6)
        world.cache.removed(key("b2"), 10**6)
        world.client.forged = world.page(10**6 + 2, a1=(before, 1), b2=(before + 1, 2), c3=(10**6 + 2, 3))
        await world.cache.barrier()
        assert world.seen == {"a1": 1, "b2": 2, "c3": 3}
        assert world.restores > 0


async def test_r23_no_ordinary_change_passes_for_a_restore(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        index = await world.put("a1", 2)
        world.cache.wrote(key("a1"), Thing(2), index)
        await world.put("b2", 2)
        await world.clock.settle()
        await world.delete("a1")
        await world.clock.settle()
        await world.cache.barrier()
        assert world.seen == {"b2": 2}
        assert world.restores == 0


async def test_r15_a_copy_that_begins_anew_believes_nothing_of_before(world: World) -> None:
    """A restore into a new cluster may give another record the same index."""
    at = await world.put("a1", 1)
    await world.put("b2", 2)
    async with world.running():
        late = world.client.keep_next()
        world.client.forged = world.page(at, a1=(at, 7))
        beginning = asyncio.create_task(world.cache.begin_anew())
        await late.taken.wait()
        assert beginning.done()
        assert not world.cache.ready.is_set()
        assert world.seen == {"a1": 1, "b2": 2}, "until the next answer"
        world.told.clear()
        late.arrive.set()
        await world.cache.ready.wait()
        assert world.seen == {"a1": 7}
        assert world.news == {"a1", "b2"}
        assert world.restores == 0
