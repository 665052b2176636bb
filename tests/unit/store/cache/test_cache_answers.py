"""A shared copy of a tree believes only proven answers, and a bad record harms no other (R20, W6)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from store import codec
from store.entry import Page
from store.errors import NotRegistered, StoreUnavailable
from store.tree import SLICE, SPLIT_ABOVE
from store.watch import BACKOFF_LIMIT
from tests.unit.store.cache.world import KEYS, SENTINEL, Thing, World, filled, key, names, unchanged


# -- changes arrive ----------------------------------------------------------------------------
async def test_changes_are_decoded_once_and_told_by_key(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        assert (world.seen, world.news) == ({"a1": 1}, {"a1"})
        await world.put("a1", 2)
        await world.put("b2", 1)
        await world.clock.settle()
        assert (world.seen, world.news) == ({"a1": 2, "b2": 1}, {"a1", "b2"})
        await world.delete("a1")
        await world.clock.settle()
        assert (world.seen, world.news) == ({"b2": 1}, {"a1"})
        assert world.cache.ready.is_set()


async def test_only_what_changed_is_decoded(world: World) -> None:
    await world.put("a1", 1)
    await world.put("b2", 1)
    async with world.running():
        kept = world.cache.entries[key("b2")]
        await world.put("a1", 2)
        await world.clock.settle()
        assert world.cache.entries[key("b2")] is kept


async def test_an_answered_wait_without_a_change_tells_nobody_but_beats(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        assert world.news == {"a1"}
        before = world.answers
        await world.clock.advance(200.0)
        assert world.news == set()
        assert world.answers > before


async def test_a_pause_gathers_changes() -> None:
    world = World()
    await world.set_up(pause=10.0)
    async with world.running():
        before = len(world.client.lists)
        for count in range(50):
            await world.put("a1", count)
        await world.clock.advance(10.0)
        assert world.seen == {"a1": 49}
        assert len(world.client.lists) - before <= 2


# -- R20: absence must be proven -----------------------------------------------------------------
async def test_r20_an_answer_without_the_sentinel_changes_nothing_and_raises_doubt(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        with unchanged(world):
            await world.client.real.delete(KEYS.tree("rcs"), recurse=True)
            await world.clock.settle()
        assert world.cache.doubt == "rcs: the answer lacks the sentinel"
        assert world.news == {"a1"}
        with pytest.raises(NotRegistered):
            await world.cache.barrier()


async def test_r20_the_sentinel_back_ends_the_doubt_and_the_truth_is_taken(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        await world.client.real.delete(KEYS.tree("rcs"), recurse=True)
        await world.clock.settle()
        await world.client.real.put(SENTINEL, msgspec.json.encode(world.cluster))
        await world.clock.advance(BACKOFF_LIMIT)
        assert world.cache.doubt is None
        assert world.seen == {}
        await world.cache.barrier()


async def test_r20_a_single_lie_with_a_high_index_is_over_at_once_and_hides_no_change(world: World) -> None:
    """A query that was parked with the index of the lie would be silent until the end of its wait."""
    async with world.running():
        world.client.forged = Page(10**6, [])
        await world.put("a1", 1)
        await world.clock.settle()
        assert world.cache.doubt
        await world.clock.advance(1.0)
        assert world.cache.doubt is None
        await world.put("a1", 2)
        await world.clock.settle()
        assert world.seen == {"a1": 2}


async def test_r20_a_lie_to_a_barrier_is_over_at_once_while_the_watch_is_parked(world: World) -> None:
    async with world.running():
        world.client.forged = Page(10**6, [])
        with pytest.raises(NotRegistered):
            await world.read()
        await world.clock.advance(1.0)
        assert world.cache.doubt is None


async def test_r20_the_sentinel_of_another_cluster_is_no_evidence(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        with unchanged(world):
            await world.client.real.delete(key("a1"))
            await world.client.real.put(SENTINEL, b'"other"')
            world.cache._pause = 0
            await world.clock.settle()
            # The first change came with a good sentinel; only what follows the foreign one is doubted.
            world.cache.wrote(key("a1"), Thing(1), 10**6)
        assert world.cache.doubt == "rcs: its sentinel has another cluster's id"


async def test_r20_a_proven_empty_tree_is_true(world: World) -> None:
    async with world.running():
        assert world.cache.ready.is_set()
        assert world.cache.doubt is None
        await world.cache.barrier()


async def test_r15_before_the_first_answer_it_is_not_ready(world: World) -> None:
    assert not world.cache.ready.is_set()
    world.client.error = StoreUnavailable("no")
    async with world.running():
        assert not world.cache.ready.is_set()
        assert world.cache.error is world.client.error


DEEP = b'{"count": 1, "another": ' + b"[" * 5000 + b"]" * 5000 + b"}"


# -- W6: one bad record ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value", [b"", b"{", b"{}", b'{"count": "x"}', b"\xff\xfe", b"[1]", b"[" * 5000, DEEP]
)
async def test_w6_a_corrupt_record_is_kept_aside_and_poisons_nothing(world: World, value: bytes) -> None:
    await world.put("a1", 1)
    await world.raw("b2", value)
    await world.put("c3", 3)
    async with world.running():
        assert world.seen == {"a1": 1, "c3": 3}
        assert list(world.cache.broken) == [key("b2")]
        assert key("b2") in world.cache.broken[key("b2")].message
        assert world.news == {"a1", "b2", "c3"}
        await world.put("a1", 2)
        await world.clock.settle()
        assert world.news == {"a1"}, "a record that stays corrupt is not told again"
        await world.put("b2", 2)
        await world.clock.settle()
        assert (world.seen, world.news) == ({"a1": 2, "b2": 2, "c3": 3}, {"b2"})
        assert world.cache.broken == {}


async def test_w6_a_record_that_becomes_corrupt_is_no_longer_served(world: World) -> None:
    await world.put("a1", 1)
    async with world.running():
        await world.raw("a1", b"{")
        await world.clock.settle()
        assert world.seen == {}
        assert list(world.cache.broken) == [key("a1")]
        await world.delete("a1")
        await world.clock.settle()
        assert world.cache.broken == {}
        assert world.news == {"a1"}


@pytest.mark.parametrize("gone", [False, True])
async def test_w6_an_own_write_or_reading_ends_what_does_not_decode(world: World, gone: bool) -> None:
    async with world.running():
        corrupt = await world.raw("a1", b"{")
        await world.clock.settle()
        world.cache.wrote(key("a1"), Thing(1), corrupt - 1)
        world.cache.removed(key("a1"), corrupt - 1)
        assert list(world.cache.broken) == [key("a1")], "an older one ends nothing"
        if gone:
            world.cache.removed(key("a1"), corrupt + 1)
        else:
            world.cache.wrote(key("a1"), Thing(1), corrupt + 1)
        assert world.cache.broken == {}
        assert world.seen == ({} if gone else {"a1": 1})


async def test_w6_a_key_that_no_record_can_have_poisons_nothing() -> None:
    """Such as the folder that a person makes in Consul's own interface."""
    world, whole = await filled(3, sharded=True)
    await world.client.real.put(KEYS.tree("rcs"), b"")
    await world.client.real.put(KEYS.tree("rcs") + "zz/deep", codec.encode(Thing(1)))
    async with world.running():
        await world.put(whole[0], 5)
        await world.clock.settle()
        assert {name: world.seen[name] for name in whole} == {whole[0]: 5, whole[1]: 0, whole[2]: 0}
        assert set(world.cache.broken) >= {KEYS.tree("rcs")}


async def test_the_first_answer_is_told_in_slices_and_later_ones_at_once() -> None:
    """The first one is long and nobody plans yet; on half of a later one nobody may plan."""
    world = World()
    await world.set_up()
    things = names(SLICE + 10)
    for name in things:
        await world.client.real.put(key(name), codec.encode(Thing(0)))
    await world.read()
    assert max(map(len, world.told)) <= SLICE
    assert world.news == set(things)
    for name in things:
        await world.client.real.put(key(name), codec.encode(Thing(1)))
    await world.read()
    assert [len(told) for told in world.told] == [SLICE + 10]


async def test_notifications_survive_a_stop_in_the_middle_of_a_large_answer() -> None:
    world, whole = await filled(SPLIT_ABOVE - 1, sharded=True)
    running = asyncio.create_task(world.cache.run())
    while not world.cache.entries:
        await asyncio.sleep(0)
    assert len(world.cache.entries) < len(whole), "the first slice only"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.news == set(world.seen)
