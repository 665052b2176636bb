"""A shared, typed copy of one tree of keys, kept fresh by parked queries (R15, R20, R23, R23a).

There is one cache a tree and process; workers read it and subscribe to changed keys. A small tree takes one
query, which small trees that begin alike may share, a large one 16, one for each first hex digit. The keys of
one digit tell at the start whether a tree is large; a tree that grows is divided later. ``store.tree``
applies the answers to the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import structlog

from store import families
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import NotRegistered, StoreError
from store.keys import Keys
from store.parts import Portion, parts
from store.ports import Clock, Rng
from store.several import several
from store.tree import SPLIT_ABOVE, Shard, TreeCopy
from store.watch import WAIT_SECONDS, Leadership, follow

T = TypeVar("T")
log = structlog.get_logger()

READ_AT_ONCE = 2
# An answer costs Consul and farmd about 1 ms, and 5 us an entry. With pauses of twenty times that a large
# tree takes a twentieth of a core, however often it changes; but what other queries brought makes no pause
# longer than LONGEST. The first change after a quiet time comes at once.
LARGE = SPLIT_ABOVE
PAUSE_AN_ANSWER, PAUSE_AN_ENTRY = 20e-3, 100e-6
LONGEST = 0.5
# A shard with more entries is read for a barrier only if its index tells that it changed.
COMPARED_ABOVE = 200
# A shard with more entries is followed by its keys, and read in parts.
IN_PARTS_ABOVE = 2000
# To look at a key costs Consul and farmd a tenth of an entry of an answer, and each is looked at twice.
LOOKED_AT = 5


class PrefixCache(TreeCopy[T]):
    """A typed copy of ``keys.tree(family)``.

    Args:
        family: the tree, such as ``rcs``; sharded families split when they grow.
        kind: record type of the values.
        cluster: the cluster id that the sentinels must have.
        pause: least seconds between two answers of one query; 0: no pause while the tree is small.
        keep_raw: keep each value's bytes, for records that this process rewrites.
        keep_unknown: keep only the bytes of values with fields that this version does not know.
        reading: limits how many whole trees a process reads at a time; all its caches share it, because
            the memory for many large answers at once would stay with the process.
        compact: makes a decoded record smaller before it is kept, such as by sharing equal strings.
        on_restore: called at each sign that the store was restored from a snapshot.
        leadership: tells whether the end of a leader is what looks like such a sign.
        dated: adds to a record the time when this process first saw it in its present state, from the
            record that was kept before and the monotonic time of the answer.
    """

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        family: str,
        kind: type[Any],
        *,
        cluster: str,
        clock: Clock,
        rng: Rng,
        sharded: bool = False,
        pause: float = 0.0,
        keep_raw: bool = False,
        keep_unknown: bool = False,
        compact: Callable[[Any], T] = lambda record: record,
        dated: Callable[[T, T | None, float], T] | None = None,
        wait: float = WAIT_SECONDS,
        reading: asyncio.Semaphore | None = None,
        on_answer: Callable[[], None] = lambda: None,
        on_restore: Callable[[], None] = lambda: None,
        leadership: Leadership | None = None,
    ) -> None:
        super().__init__(
            keys,
            family,
            kind,
            cluster=cluster,
            clock=clock,
            sharded=sharded,
            keep_raw=keep_raw,
            keep_unknown=keep_unknown,
            compact=compact,
            on_restore=on_restore,
            dated=dated,
        )
        self._client = client
        self._rng = rng
        self._pause = pause
        self._paused_until = 0.0
        self._wait = wait
        self._reading = reading or asyncio.Semaphore(READ_AT_ONCE)
        self._on_answer = on_answer
        self._leadership = leadership
        self._barrier: asyncio.Task[None] | None = None
        self._barrier_prefixes: set[str] = set()
        self._barrier_lock = asyncio.Lock()
        self._error: StoreError | None = None
        self._leader: PrefixCache[Any] | None = None
        self._led: list[PrefixCache[Any]] = []
        self._beginning = ""
        self._outdated = asyncio.Event()
        self._doubted = asyncio.Event()
        self._forgotten = asyncio.Event()

    # -- reading -------------------------------------------------------------------------------
    @property
    def error(self) -> StoreError | None:
        """The error of the last query of this tree; None if it was answered."""
        return self._error

    def staleness(self) -> float:
        """Seconds since the oldest query of this tree was last answered."""
        return self._clock.mono() - min(shard.answered for shard in self._shards)

    def parked(self) -> int:
        """How many queries this cache keeps parked."""
        return 0 if self._leader is not None else len(self._shards)

    def lead(self, other: PrefixCache[Any], beginning: str) -> None:
        """Follow another small tree by this cache's one query: for ``beginning``, with which both begin."""
        self._led.append(other)
        other._leader = self
        self._beginning = other._beginning = beginning

    def _asked(self, shard: Shard) -> str:
        """The prefix that a query for a shard asks for."""
        return self._beginning or shard.prefix

    def _own(self, page: Page[RawEntry]) -> Page[RawEntry]:
        """What an answer has of this tree."""
        if not self._beginning:
            return page
        own = [raw for raw in page.items if raw.key.startswith(self._prefix)]
        return Page(page.index, own, page.unchanged)

    # -- keeping it fresh ----------------------------------------------------------------------
    async def run(self) -> None:
        """Keep the copy fresh until cancelled."""
        if self._sharded:
            await self._begin()
        while True:
            shards = self._shards if self._leader is None else []
            tasks = [asyncio.create_task(self._follow(shard)) for shard in shards]
            turns = [
                asyncio.create_task(turn.wait()) for turn in (self._split, self._outdated, self._doubted)
            ]
            try:
                done, _ = await asyncio.wait([*tasks, *turns], return_when=asyncio.FIRST_COMPLETED)
                for task in done.difference(turns):
                    task.result()
            finally:
                for task in (*tasks, *turns):
                    task.cancel()
                await asyncio.gather(*tasks, *turns, return_exceptions=True)
            async with self._barrier_lock:
                self._doubted.clear()
                if self._split.is_set():
                    self._divide()
                    log.debug("cache.split", tree=self.family, keys=len(self.entries))
                if self._outdated.is_set():
                    self._forget()
                    self._outdated.clear()
                    self._forgotten.set()
            if self._leader is not None:
                self._leader._doubted.set()  # its query brings this tree, too: it is sent again

    async def begin_anew(self) -> None:
        """Read the whole tree again; returns when no query of before can still bring an answer.

        ``ready`` is cleared until the whole tree was read. ``run`` must be running.
        """
        self._forgotten.clear()
        self._outdated.set()
        await self._forgotten.wait()

    async def _begin(self) -> None:
        """Divide a tree before it is read if the keys of its first shard show that it is large."""
        first, *others = families.shards(self._keys, self.family)
        try:
            page = await self._client.keys(first)
        except StoreError:
            return  # the query of the whole tree will report the error and repeat
        if len(page.items) * (1 + len(others)) > 2 * SPLIT_ABOVE:
            async with self._barrier_lock:
                if len(self._shards) == 1:
                    self._divide()

    async def _follow(self, shard: Shard) -> None:
        asked, led = 0, list[tuple[PrefixCache[Any], Shard, int]]()

        async def query(index: int, wait: float) -> Page[RawEntry]:
            nonlocal asked, led
            asked = shard.index
            led = [(other, other._shards[0], other._shards[0].index) for other in self._led]
            if not index:
                return await self._whole(shard)
            if not self._in_parts(shard):
                return await self._client.list(self._asked(shard), index=index, wait=wait)
            listed = await self._client.keys(shard.prefix, separator="/", index=index, wait=wait)
            if listed.unchanged:
                if not shard.parts:
                    await self._look(shard)
                return Page(listed.index, [], unchanged=True)
            return await self._portion(shard, listed)

        def answered() -> None:
            self._answered(shard)
            for other in self._led:
                other._answered(other._shards[0])

        pages = follow(
            query,
            name=self._asked(shard),
            clock=self._clock,
            rng=self._rng,
            wait=self._wait,
            pause=self._pause,
            on_error=self._failed,
            on_answer=answered,
            on_restore=self._on_restore,
            leadership=self._leadership,
            proven=lambda page: (
                not any(each._lacks(of, each._own(page)) for each, of, _ in [(self, shard, asked), *led])
            ),
        )
        async for page in pages:
            await self._accept(shard, self._own(page), asked)
            for other, known, index in led:
                if known is other._shards[0]:  # else the answer was asked for before all was forgotten
                    await other._accept(known, other._own(page), index)
            await self._clock.sleep(0)  # whom the answer woke sends first, then the next query is sent
            size = len(page.items)
            if isinstance(page, Portion):
                size += shard.count // LOOKED_AT
            del page  # frees the memory of a whole tree during the next wait
            if asked and (self._pause or len(self.entries) > LARGE):
                await self._clock.sleep(max(0.0, self._rest(size) - self._pause))

    def _in_parts(self, shard: Shard) -> bool:
        """Whether a shard is followed by its keys."""
        return shard.count > IN_PARTS_ABOVE and not self._beginning

    async def _whole(self, shard: Shard) -> Page[RawEntry]:
        async with self._reading:
            return await self._client.list(self._asked(shard), mode="consistent")

    async def _portion(self, shard: Shard, listed: Page[str]) -> Page[RawEntry]:
        """The parts of a shard whose index is not the one that the copy was made at, or all of the shard.

        A lower index counts, too: the store may have been restored. All reads are consistent: of a server
        that shows the past, a part would seem unchanged.
        """
        known, sentinel = shard.parts, self._keys.sentinel(shard.prefix)
        found = await self._indexes(shard, listed)
        below = [part for part, index in found.items() if known.get(part) != index]
        if shard.anew or shard.doubt or listed.index < shard.index or not found:
            return await self._whole(shard)
        most = 2 * len(below) > len(found)
        below = [shard.prefix] if most else below
        items = list[RawEntry]()
        async with self._reading:
            # The sentinel is read last: if it is there, the tree was not deleted while the parts were read.
            for prefix in below if most else [*below, sentinel]:
                items += (await self._client.list(prefix, mode="consistent")).items
        return Portion(listed.index, items, names=frozenset(listed.items), below=tuple(below), parts=found)

    async def _indexes(self, shard: Shard, listed: Page[str]) -> dict[str, int]:
        """The parts of a shard, each with its index; none if its names divide it into too few or too many."""

        async def one(part: str) -> tuple[str, int]:
            return part, await self._client.newest(part)

        sentinel = self._keys.sentinel(shard.prefix)
        return dict(await several(one, parts(name for name in listed.items if name != sentinel)))

    async def _look(self, shard: Shard) -> None:
        """Note the parts of a shard while nothing changes, so that the first change costs one of them."""
        listed = await self._client.keys(shard.prefix, separator="/", mode="consistent")
        found = await self._indexes(shard, listed)
        shard.parts = {part: index for part, index in found.items() if index <= shard.index}

    def _rest(self, size: int) -> float:
        """Seconds until a query that brought so many entries is sent again; those of a tree take turns."""
        now, own = self._clock.mono(), PAUSE_AN_ANSWER + size * PAUSE_AN_ENTRY
        self._paused_until = min(max(self._paused_until, now) + own, now + max(own, LONGEST))
        return self._paused_until - now

    def _failed(self, error: StoreError) -> None:
        """Note an error. The query repeats, so it counts as progress: a restart would not help."""
        self._error = error
        self._on_answer()
        for other in self._led:
            other._failed(error)

    def _answered(self, shard: Shard) -> None:
        self._error = None
        shard.answered = self._clock.mono()
        self._on_answer()

    async def barrier(self, keys: Iterable[str] | None = None) -> None:
        """Return when a request that started after this call has read the shards of these keys (None: all).

        One shared read serves all callers that wait for it (R15).

        Raises:
            StoreError: the read failed; this copy must not be used for a plan.
        """
        self._barrier_prefixes |= {self._shard_of(key).prefix for key in keys} if keys is not None else {""}
        if self._barrier is None:
            self._barrier = asyncio.create_task(self._read_barrier())
            # Retrieves the error if every caller was cancelled meanwhile.
            self._barrier.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._barrier)

    async def fresh(self, keys: Iterable[str], seconds: float) -> bool:
        """Read the shards of these keys that were last answered longer ago; whether there were any.

        Raises:
            StoreError: as ``barrier``.
        """
        least = self._clock.mono() - seconds
        old = [key for key in keys if self._shard_of(key).answered < least]
        if old:
            await self.barrier(old)
        return bool(old)

    async def _since(self, shard: Shard) -> Page[RawEntry] | None:
        """What a read that begins now finds; None if the copy has reached it.

        The keys up to the next slash are a tenth of the answer with values, or less, and tell the index.
        """
        asked = shard.index
        if shard.count > COMPARED_ABOVE and not shard.anew and not shard.doubt:
            listed = await self._client.keys(self._asked(shard), separator="/", mode="consistent")
            if asked <= listed.index <= shard.index:
                return None
            if self._in_parts(shard):
                return await self._portion(shard, listed)
        return await self._whole(shard)

    async def _read_barrier(self) -> None:
        async with self._barrier_lock:
            prefixes, self._barrier_prefixes, self._barrier = self._barrier_prefixes, set(), None
            # An unknown prefix means that the tree was divided after the call.
            whole = not prefixes <= {shard.prefix for shard in self._shards} or not self.ready.is_set()
            shards = [shard for shard in self._shards if whole or shard.prefix in prefixes]
            # None goes on after an error: who has the lock next may replace the shards.
            await several(self._read, shards)

    async def _read(self, shard: Shard) -> None:
        asked, doubted = shard.index, shard.doubt
        page = await self._since(shard)
        self._answered(shard)
        if page is None:
            return
        await self._accept(shard, self._own(page), asked)
        if shard.doubt:
            if not doubted:
                self._doubted.set()  # the parked query may be silent for a minute: all are sent again
            raise NotRegistered(f"{shard.prefix}: {shard.doubt}", prefix=shard.prefix)
