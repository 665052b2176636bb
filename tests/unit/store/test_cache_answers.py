"""A shared copy of a tree believes only proven answers, and poisons nothing (R15, R20, R23, W6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest

from store import codec, operations
from store.cache import COMPARED_ABOVE, LARGE, PAUSE_AN_ENTRY, PrefixCache
from store.entry import Page, RawEntry
from store.errors import NotRegistered, StoreError, StoreUnavailable
from store.keys import Keys
from store.ports import Mode
from store.registration import register_cluster
from store.tree import SLICE, SPLIT_ABOVE
from tests.virtual import SeededIds, VirtualClock, embedded_client

KEYS = Keys("t/")


class Thing(msgspec.Struct, frozen=True):
    """A record of the tests; ``count`` is required."""

    count: int


class Late:
    """An answer that was given by the server and has not arrived yet."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.arrive = asyncio.Event()


class Client:
    """The embedded server's client; answers can be kept on the way, those to ``list`` replaced."""

    def __init__(self, clock: VirtualClock) -> None:
        self.real = embedded_client(clock)
        self.lists: list[tuple[str, int]] = []
        self.late: list[Late] = []
        self.error: StoreError | None = None
        self.forged: Page[RawEntry] | None = None

    def keep_next(self) -> Late:
        """Keep the next answer on its way."""
        self.late.append(Late())
        return self.late[-1]

    async def list(
        self, prefix: str, *, index: int = 0, wait: float = 0.0, mode: Mode = "default"
    ) -> Page[RawEntry]:
        assert index or mode == "consistent", "a server that replays its log shows the past"
        self.lists.append((prefix, index))
        late = self.late.pop(0) if self.late else None
        if self.error is not None:
            raise self.error
        page = await self.real.list(prefix, index=index, wait=wait, mode=mode)
        if self.forged is not None:
            page, self.forged = self.forged, None
        if late is not None:
            late.taken.set()
            await late.arrive.wait()
        return page

    async def keys(self, prefix: str, *, separator: str = "", mode: Mode = "default") -> Page[str]:
        self.lists.append((prefix, -1))
        late = self.late.pop(0) if self.late else None
        if self.error is not None:
            raise self.error
        page = await self.real.keys(prefix, separator=separator, mode=mode)
        if late is not None:
            late.taken.set()
            await late.arrive.wait()
        return page


class World:
    """A registered store, a cache of its ``rcs``, and what the cache's subscribers were told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.client = Client(self.clock)
        self.told: list[set[str]] = []
        self.answers = 0
        self.restores = 0

    async def set_up(self, **options: Any) -> None:
        self.cluster = await register_cluster(self.client.real, KEYS, SeededIds())
        self.cache = PrefixCache(
            self.client,  # type: ignore[arg-type]
            KEYS,
            "rcs",
            Thing,
            cluster=self.cluster,
            clock=self.clock,
            rng=random.Random(1),
            on_answer=self.answered,
            on_restore=self.restored,
            **options,
        )
        self.cache.subscribe(lambda keys: self.told.append(set(keys)))

    def answered(self) -> None:
        self.answers += 1

    def restored(self) -> None:
        self.restores += 1

    def page(self, index: int, **counts: tuple[int, int]) -> Page[RawEntry]:
        """An answer of a restored server: (index, count) of each record."""
        values = {SENTINEL: (1, msgspec.json.encode(self.cluster))}
        values |= {key(name): (at, codec.encode(Thing(count))) for name, (at, count) in counts.items()}
        return Page(index, [RawEntry(k, at, value=msgspec.Raw(_base64(v))) for k, (at, v) in values.items()])

    async def put(self, name: str, count: int) -> int:
        return await self.raw(name, codec.encode(Thing(count)))

    async def raw(self, name: str, value: bytes) -> int:
        await self.client.real.put(key(name), value)
        entry = await self.client.real.read(key(name))
        assert entry is not None
        return entry.modify_index

    async def delete(self, name: str) -> None:
        await self.client.real.delete(key(name))

    async def read(self) -> None:
        """One read of everything, without a watch."""
        reading = asyncio.create_task(self.cache.barrier())
        await self.clock.settle()
        await reading

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.cache.run())
        await self.clock.settle()
        try:
            yield
            await self.clock.settle()
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def seen(self) -> dict[str, int]:
        return {KEYS.last_part(k): stored.record.count for k, stored in self.cache.entries.items()}

    @property
    def news(self) -> set[str]:
        """Keys that subscribers were told of since the last look."""
        told, self.told[:] = set().union(*self.told), []
        return {KEYS.last_part(k) for k in told}


def key(name: str) -> str:
    return KEYS.record("rcs", name)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.set_up()
    return world


@contextmanager
def unchanged(world: World) -> Iterator[None]:
    before = dict(world.seen)
    yield
    assert world.seen == before


SENTINEL = KEYS.sentinel(KEYS.tree("rcs"))


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
        await world.clock.settle()
        assert world.cache.doubt is None
        assert world.seen == {}
        await world.cache.barrier()


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
        assert world.cache.doubt == "rcs: its sentinel bears another cluster's id"


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


# -- W6: one bad record ----------------------------------------------------------------------------
@pytest.mark.parametrize("value", [b"", b"{", b"{}", b'{"count": "x"}', b"\xff\xfe", b"[1]"])
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


# -- own commits and older answers (R15, R23a) -----------------------------------------------------
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


def _base64(value: bytes) -> bytes:
    return msgspec.json.encode(value)


# -- R15: the barrier ------------------------------------------------------------------------------
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
    world, whole = await unsharded(COMPARED_ABOVE + 9)
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
    world, _ = await unsharded(COMPARED_ABOVE + 9)
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


# -- R23: sixteen shards ---------------------------------------------------------------------------
def names(count: int) -> list[str]:
    ids = SeededIds(7)
    return [ids.new() for _ in range(count)]


async def sharded(count: int) -> tuple[World, list[str]]:
    world = World()
    await world.set_up(sharded=True)
    whole = names(count)
    for name in whole:
        await world.client.real.put(key(name), codec.encode(Thing(0)))
    return world, whole


async def unsharded(count: int) -> tuple[World, list[str]]:
    world = World()
    await world.set_up(pause=3600.0)
    whole = names(count)
    for name in whole:
        await world.client.real.put(key(name), codec.encode(Thing(0)))
    return world, whole


async def test_r23_a_tree_that_is_large_already_is_never_read_whole() -> None:
    world, whole = await sharded(3 * SPLIT_ABOVE)
    async with world.running():
        assert world.cache.parked() == 16
        assert set(world.seen) == world.news == set(whole)
        assert (KEYS.tree("rcs"), 0) not in world.client.lists


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


async def test_a_look_that_fails_leaves_the_asking_to_the_query() -> None:
    world, whole = await sharded(20)
    world.client.error = StoreUnavailable("no")
    async with world.running():
        assert world.cache.error is world.client.error
        world.client.error = None
        await world.clock.advance(1.0)
        assert set(world.seen) == set(whole)


async def test_r23_a_grown_tree_splits_into_sixteen_and_stays_whole() -> None:
    world, whole = await sharded(SPLIT_ABOVE - 20)
    async with world.running():
        assert world.cache.parked() == 1
        more = names(SPLIT_ABOVE + 50)[SPLIT_ABOVE - 20 :]
        for name in more:
            await world.client.real.put(key(name), codec.encode(Thing(0)))
        whole += more
        await world.clock.settle()
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


async def test_a_split_is_no_doubt() -> None:
    """A tree that is being split was read a moment ago: nobody may freeze over that."""
    world, _ = await sharded(SPLIT_ABOVE - 20)
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


async def test_r15_a_barrier_that_waited_for_the_split_reads_all_the_same() -> None:
    world, whole = await sharded(SPLIT_ABOVE - 20)
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
    world, whole = await sharded(SPLIT_ABOVE + 50)
    async with world.running():
        before = len(world.client.lists)
        await world.cache.barrier([key(whole[0])])
        assert world.client.lists[before:] == [(KEYS.tree("rcs") + whole[0][0], 0)]


async def test_r20_one_doubtful_shard_makes_the_tree_doubtful_and_keeps_its_entries() -> None:
    world, whole = await sharded(SPLIT_ABOVE + 50)
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


async def test_w6_a_key_that_no_record_can_have_poisons_nothing() -> None:
    """Such as the folder that a person makes in Consul's own interface."""
    world, whole = await sharded(3)
    await world.client.real.put(KEYS.tree("rcs"), b"")
    await world.client.real.put(KEYS.tree("rcs") + "zz/deep", codec.encode(Thing(1)))
    async with world.running():
        await world.put(whole[0], 5)
        await world.clock.settle()
        assert {name: world.seen[name] for name in whole} == {whole[0]: 5, whole[1]: 0, whole[2]: 0}
        assert set(world.cache.broken) >= {KEYS.tree("rcs")}


async def test_notifications_survive_a_stop_in_the_middle_of_a_large_answer() -> None:
    world, whole = await sharded(SPLIT_ABOVE - 1)
    running = asyncio.create_task(world.cache.run())
    while not world.cache.entries:
        await asyncio.sleep(0)
    assert len(world.cache.entries) < len(whole), "the first slice only"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.news == set(world.seen)
