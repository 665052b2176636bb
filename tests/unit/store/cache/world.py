"""A cache of one tree on the embedded server, whose answers a test may keep back or replace."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec

from store import codec
from store.cache import PrefixCache
from store.entry import Page, RawEntry
from store.errors import StoreError
from store.keys import Keys
from store.ports import Mode
from store.registration import register_cluster
from tests.virtual import SeededIds, VirtualClock, embedded_client

KEYS = Keys("t/")
SENTINEL = KEYS.sentinel(KEYS.tree("rcs"))


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
        self, prefix: str, *, index: int = 0, wait: float = 0.0, mode: Mode = "default", most: int = 0
    ) -> Page[RawEntry]:
        assert index or mode == "consistent", "a server that replays its log shows the past"
        self.lists.append((prefix, index))
        late = self.late.pop(0) if self.late else None
        if self.error is not None:
            raise self.error
        page = await self.real.list(prefix, index=index, wait=wait, mode=mode, most=most)
        if self.forged is not None:
            page, self.forged = self.forged, None
        if late is not None:
            late.taken.set()
            await late.arrive.wait()
        return page

    async def keys(
        self,
        prefix: str,
        *,
        index: int = 0,
        wait: float = 0.0,
        separator: str = "",
        mode: Mode = "default",
    ) -> Page[str]:
        self.lists.append((prefix, -1))
        late = self.late.pop(0) if self.late else None
        if self.error is not None:
            raise self.error
        page = await self.real.keys(prefix, index=index, wait=wait, separator=separator, mode=mode)
        if late is not None:
            late.taken.set()
            await late.arrive.wait()
        return page

    async def newest(self, prefix: str) -> int:
        return (await self.keys(prefix, separator="/", mode="consistent")).index


class World:
    """A registered store, a cache of its ``rcs``, and what the cache's subscribers were told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.client = Client(self.clock)
        self.told: list[set[str]] = []
        self.answers = 0
        self.restores = 0

    async def set_up(self, *, family: str = "rcs", **options: Any) -> None:
        self.cluster = await register_cluster(self.client.real, KEYS, SeededIds())
        self.cache = PrefixCache(
            self.client,  # type: ignore[arg-type]
            KEYS,
            family,
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
        return Page(
            index,
            [RawEntry(k, at, value=msgspec.Raw(msgspec.json.encode(v))) for k, (at, v) in values.items()],
        )

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


@contextmanager
def unchanged(world: World) -> Iterator[None]:
    before = dict(world.seen)
    yield
    assert world.seen == before


def names(count: int) -> list[str]:
    ids = SeededIds(7)
    return [ids.new() for _ in range(count)]


async def filled(count: int, **options: Any) -> tuple[World, list[str]]:
    """A store of this many records, and their names; ``options`` are the cache's."""
    world = World()
    await world.set_up(**options)
    whole = names(count)
    for name in whole:
        await world.client.real.put(key(name), codec.encode(Thing(0)))
    return world, whole
