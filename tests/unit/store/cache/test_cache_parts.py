"""A large tree is followed by its keys, and a change costs the part that it is in (R23)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import cache, codec
from store.entry import Page, RawEntry
from store.keys import is_sentinel
from store.parts import MOST, parts
from store.watch import WAIT_SECONDS
from tests.unit.store.cache.world import KEYS, SENTINEL, Thing, World, filled, key

LARGE = 50
TREE = KEYS.tree("rcs")


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "IN_PARTS_ABOVE", LARGE)


@given(st.sets(st.text("ab/.\U0001f600", min_size=1, max_size=6)))
def test_r23_each_name_is_in_exactly_one_part(names: set[str]) -> None:
    found = parts(names)
    assert len(found) <= MOST
    if found:
        assert [sum(name.startswith(part) for part in found) for name in names] == [1] * len(names)


def test_r23_names_that_are_counted_up_are_divided_evenly() -> None:
    found = parts(f"intent/node-{number:05d}/" for number in range(20_000))
    assert found == [f"intent/node-{tens:02d}" for tens in range(20)]


async def test_r23_a_change_in_a_large_tree_is_read_with_its_part_alone() -> None:
    world, whole = await filled(20 * LARGE)
    async with world.running():
        await world.clock.advance(WAIT_SECONDS * 1.1)  # an idle wait, after which the parts are looked at
        world.client.lists.clear()
        await world.put(whole[0], 7)
        await world.clock.settle()
        values = {prefix for prefix, index in world.client.lists if index >= 0}
        assert values == {SENTINEL, key(whole[0])[: len(TREE) + 1]}
        assert world.seen[whole[0]] == 7
        assert world.news >= {whole[0]}


async def test_r23_the_end_of_a_wait_brings_no_values_of_a_large_tree() -> None:
    world, _ = await filled(2 * LARGE)
    async with world.running():
        world.client.lists.clear()
        await world.clock.advance(300.0)
        assert {index for _, index in world.client.lists} == {-1}


async def test_r23_a_part_whose_index_went_back_is_read_again() -> None:
    """The store was restored, and another part got a write with a higher index than all before."""
    world, whole = await filled(20 * LARGE)
    async with world.running():
        await world.clock.advance(WAIT_SECONDS * 1.1)
        (shard,) = world.cache._shards
        newest = max(shard.parts, key=lambda part: shard.parts[part])
        shard.parts[newest] += 1
        other = next(name for name in whole if not key(name).startswith(newest))
        world.client.lists.clear()
        await world.put(other, 7)
        await world.clock.settle()
        assert newest in {prefix for prefix, index in world.client.lists if index >= 0}


async def test_r20_a_large_tree_without_its_sentinel_proves_nothing() -> None:
    world, whole = await filled(2 * LARGE)
    async with world.running():
        await world.client.real.delete(SENTINEL)
        await world.delete(whole[0])
        await world.clock.settle()
        assert whole[0] in world.seen
        assert world.cache.doubt


async def test_r20_a_tree_that_is_deleted_while_a_part_of_it_is_read_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, tree = World(), KEYS.tree("intent")
    await world.set_up(family="intent")
    client, read = world.client, world.client.list
    places = [f"{tree}n{number % 400:03}/i{number}" for number in range(20 * LARGE)]
    for each in places:
        await client.real.put(each, codec.encode(Thing(0)))
    async with world.running():
        await world.clock.advance(WAIT_SECONDS * 1.1)

        async def deletes(prefix: str, **asked: Any) -> Page[RawEntry]:
            if prefix != KEYS.sentinel(tree):
                await client.real.delete(tree, recurse=True)
            return await read(prefix, **asked)

        monkeypatch.setattr(client, "list", deletes)
        await client.real.put(places[0], codec.encode(Thing(7)))
        await world.clock.settle()
        assert world.cache.doubt
        assert world.cache.entries.keys() == set(places)


@pytest.mark.parametrize(
    ("family", "place"), [("rcs", "{0:03x}"), ("intent", "n{1}/i{0}"), ("reality", "{2:x}/n{1}/i{0}")]
)
async def test_r23_a_copy_in_parts_is_what_the_store_holds(family: str, place: str) -> None:
    """However records come, change and go, also all of a part and all of the tree but a few."""
    world, choose = World(), random.Random(1)
    await world.set_up(family=family)
    tree, real = KEYS.tree(family), world.client.real
    places = [tree + place.format(n, n % 40, n % 16) for n in range(6 * LARGE)]
    for each in places:
        await real.put(each, codec.encode(Thing(0)))

    async def stored() -> dict[str, int]:
        items = (await real.list(tree)).items
        return {
            raw.key: codec.decode(Thing, raw.decoded(), raw.key).count
            for raw in items
            if not is_sentinel(raw.key)
        }

    async with world.running():
        for step in range(40):
            some = choose.sample(places, choose.choice([1, 3, 80]))
            if step % 10 == 9:
                some = [each for each in places if each.startswith(some[0][:-1])]
            for each in some:
                if choose.random() < 0.5:
                    await real.delete(each)
                else:
                    await real.put(each, codec.encode(Thing(step)))
            if step % 3 == 0:
                await world.cache.barrier()
            await world.clock.advance(5.0)
            assert {at: known.record.count for at, known in world.cache.entries.items()} == await stored()
            assert world.cache.doubt is None
