"""A shared, typed copy of one tree of keys, kept fresh by parked queries (R15, R20, R23, R23a).

One cache a tree and process; workers read it and subscribe to the keys that changed. A small tree takes one
query, a large one 16, one for each first hex digit: a look at one digit tells at the start, and a tree that
grows is divided later. An answer without the
tree's sentinel is no evidence of absence: it changes nothing and raises ``doubt``. Only entries whose
ModifyIndex moved are decoded, in slices, so that a large tree does not stall the loop. A record that
does not decode is kept aside in ``broken`` and poisons nothing else.

A process applies its own commits at once (``wrote``, ``removed``); answers that are older than such a
commit do not undo it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from store import codec
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry, Stored
from store.errors import NotRegistered, RecordInvalid, StoreError
from store.keys import Keys, is_sentinel
from store.ports import Clock, Rng
from store.watch import WAIT_SECONDS, follow

T = TypeVar("T")
log = structlog.get_logger()

SPLIT_ABOVE = 1000
SLICE = 500
READ_AT_ONCE = 2
# A large answer costs Consul and us about 5 us an entry: so no query takes more than a twentieth of a core,
# however often its tree changes. The first change after a quiet time is seen at once all the same.
LARGE = SPLIT_ABOVE
PAUSE_AN_ENTRY = 100e-6


@dataclass(slots=True)
class _Shard:
    """One parked query: its prefix, the index of its last answer, and what it last said of itself.

    ``removed`` holds this process's deletions until an answer is as new as they are.
    """

    prefix: str
    index: int = 0
    read: bool = False
    doubt: str | None = None
    count: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    answered: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PrefixCache(Generic[T]):
    """A typed copy of ``keys.tree(family)``.

    Args:
        family: the tree, such as ``rcs``; sharded families split when they grow.
        kind: record type of its values.
        cluster: the id that its sentinels must bear.
        pause: least seconds between two answers of one query; 0: at once while it is small.
        keep_raw: keep each value's bytes, for records that this process rewrites.
        reading: shared by all trees of a process: whole trees are read a few at a time, because many
            large answers at once would decide how much memory the process keeps for ever.
        compact: makes a decoded record smaller before it is kept, such as by sharing equal strings.
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
        compact: Callable[[Any], T] = lambda record: record,
        wait: float = WAIT_SECONDS,
        reading: asyncio.Semaphore | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind
        self._sentinel = msgspec.json.encode(cluster)
        self._clock = clock
        self._rng = rng
        self._sharded = sharded
        self._pause = pause
        self._keep_raw = keep_raw
        self._compact = compact
        self._wait = wait
        self._reading = reading or asyncio.Semaphore(READ_AT_ONCE)
        self._on_answer = on_answer
        self.family = family
        self._prefix = keys.tree(family)
        self._shards = [_Shard(self._prefix)]
        self._subscribers: list[Callable[[set[str]], None]] = []
        self._barrier: asyncio.Task[None] | None = None
        self._barrier_prefixes: set[str] = set()
        self._barrier_lock = asyncio.Lock()
        self._error: StoreError | None = None
        self._split = asyncio.Event()
        self.entries: dict[str, Stored[T]] = {}
        self.broken: dict[str, RecordInvalid] = {}
        self.ready = asyncio.Event()

    # -- reading -------------------------------------------------------------------------------
    def get(self, key: str) -> Stored[T] | None:
        """The record at a key, as last seen."""
        return self.entries.get(key)

    @property
    def doubt(self) -> str | None:
        """Why this copy is no evidence of absence right now; None when it is (R19, R20)."""
        return next((f"{self.family}: {shard.doubt}" for shard in self._shards if shard.doubt), None)

    @property
    def error(self) -> StoreError | None:
        """What the last query of this tree failed with; None when it was answered."""
        return self._error

    def staleness(self) -> float:
        """Seconds since the oldest query of this tree was last answered."""
        return self._clock.mono() - min(shard.answered for shard in self._shards)

    def parked(self) -> int:
        """How many queries this cache keeps parked."""
        return len(self._shards)

    def subscribe(self, callback: Callable[[set[str]], None]) -> None:
        """Call back with the keys that changed, appeared or vanished, after each change."""
        self._subscribers.append(callback)

    # -- keeping it fresh ----------------------------------------------------------------------
    async def run(self) -> None:
        """Keep the copy fresh until cancelled."""
        if self._sharded:
            await self._begin()
        while True:
            tasks = [asyncio.create_task(self._follow(shard)) for shard in self._shards]
            split = asyncio.create_task(self._split.wait())
            try:
                done, _ = await asyncio.wait([*tasks, split], return_when=asyncio.FIRST_COMPLETED)
                for task in done - {split}:
                    task.result()
            finally:
                for task in (*tasks, split):
                    task.cancel()
                await asyncio.gather(*tasks, split, return_exceptions=True)
            async with self._barrier_lock:
                self._divide()
            log.debug("cache.split", tree=self.family, keys=len(self.entries))

    async def _begin(self) -> None:
        """A tree that is surely large already is divided before it is read: a sixteenth of it tells."""
        first, *others = self._keys.shards(self.family)
        try:
            page = await self._client.keys(first)
        except StoreError:
            return  # the query of the whole tree will say so, and go on asking
        if len(page.items) * (1 + len(others)) > 2 * SPLIT_ABOVE:
            async with self._barrier_lock:
                if len(self._shards) == 1:
                    self._divide()

    def _divide(self) -> None:
        """From one query to 16; what is known stays known."""
        (whole,) = self._shards
        self._shards = [_Shard(prefix, answered=whole.answered) for prefix in self._keys.shards(self.family)]
        for key in self.entries:
            self._shard_of(key).count += 1
        for key, index in whole.removed.items():
            self._shard_of(key).removed[key] = index
        self._split = asyncio.Event()

    async def _follow(self, shard: _Shard) -> None:
        asked = 0

        async def query(index: int, wait: float) -> Page[RawEntry]:
            nonlocal asked
            asked = shard.index
            if index:
                return await self._client.list(shard.prefix, index=index, wait=wait)
            async with self._reading:
                return await self._client.list(shard.prefix)

        pages = follow(
            query,
            name=shard.prefix,
            clock=self._clock,
            rng=self._rng,
            wait=self._wait,
            pause=self._pause,
            on_error=self._failed,
            on_answer=lambda: self._answered(shard),
        )
        async for page in pages:
            await self._accept(shard, page, asked)
            size = len(page.items)
            del page  # the next may take a minute to come, and a page is as large as its tree
            if size > LARGE:
                await self._clock.sleep(max(0.0, size * PAUSE_AN_ENTRY - self._pause))

    def _failed(self, error: StoreError) -> None:
        """An outage is no stalled loop: the query goes on asking, and restarting helps nobody."""
        self._error = error
        self._on_answer()

    def _answered(self, shard: _Shard) -> None:
        self._error = None
        shard.answered = self._clock.mono()
        self._on_answer()

    async def barrier(self, keys: Iterable[str] | None = None) -> None:
        """Return once the shards of these keys (None: all) were read by a request started after this call.

        One shared read serves all callers that wait for it (R15).

        Raises:
            StoreError: the read failed; nothing may be planned from this copy.
        """
        self._barrier_prefixes |= {self._shard_of(key).prefix for key in keys} if keys is not None else {""}
        if self._barrier is None:
            self._barrier = asyncio.create_task(self._read_barrier())
            # Retrieved here too, for the case that every caller was cancelled meanwhile.
            self._barrier.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._barrier)

    async def _read_barrier(self) -> None:
        async with self._barrier_lock:
            prefixes, self._barrier_prefixes, self._barrier = self._barrier_prefixes, set(), None
            # A prefix that is none of ours (any more): the tree was divided since it was asked for.
            whole = not prefixes <= {shard.prefix for shard in self._shards} or not self.ready.is_set()
            shards = [shard for shard in self._shards if whole or shard.prefix in prefixes]
            await asyncio.gather(*(self._read(shard) for shard in shards))

    async def _read(self, shard: _Shard) -> None:
        async with self._reading:
            asked = shard.index
            page = await self._client.list(shard.prefix)
            self._answered(shard)
            await self._accept(shard, page, asked)
        if shard.doubt:
            raise NotRegistered(f"{shard.prefix}: {shard.doubt}", prefix=shard.prefix)

    # -- applying answers ----------------------------------------------------------------------
    async def _accept(self, shard: _Shard, page: Page[RawEntry], asked: int) -> None:
        """Apply an answer. ``asked`` is the shard's index when the request left.

        An index below that went back at the server. One that is merely below what came in meanwhile
        belongs to an answer that was overtaken: it is older than what is here, and says nothing new.
        """
        async with shard.lock:
            if asked <= page.index < shard.index:
                return
            await self._take_in(shard, page)

    async def _take_in(self, shard: _Shard, page: Page[RawEntry]) -> None:
        if doubt := self._doubtful(shard, page):
            if shard.doubt != doubt:
                log.warning("cache.doubt", tree=self.family, prefix=shard.prefix, reason=doubt)
            shard.doubt = doubt
            return
        reset = page.index < shard.index
        if reset:
            shard.removed.clear()
        await self._apply(shard, page, reset=reset)
        shard.index = page.index
        shard.doubt = None
        shard.removed = {key: index for key, index in shard.removed.items() if index > page.index}
        shard.read = True
        if not self.ready.is_set() and all(s.read for s in self._shards):
            self.ready.set()
        if self._sharded and len(self._shards) == 1 and len(page.items) > SPLIT_ABOVE:
            self._split.set()

    def _doubtful(self, shard: _Shard, page: Page[RawEntry]) -> str | None:
        sentinel = self._keys.sentinel(shard.prefix)
        for raw in page.items:
            if raw.key == sentinel:
                return None if raw.decoded() == self._sentinel else "its sentinel bears another cluster's id"
        return "the answer lacks the sentinel"

    async def _apply(self, shard: _Shard, page: Page[RawEntry], *, reset: bool) -> None:
        """Take in what an answer says, in slices, and tell of it at once: nobody may plan on half an answer.

        Only the first answer is told slice by slice; nobody plans before that is complete.
        """
        seen, changed = set[str](), set[str]()
        try:
            for start in range(0, len(page.items), SLICE):
                if start:
                    if not shard.read:
                        changed = self._told(changed)
                    await self._clock.sleep(0)
                self._see(shard, page.items[start : start + SLICE], seen, changed, reset=reset)
            for key in self._gone(shard, seen):
                known = self.entries.get(key)
                if known is not None and known.index > page.index and not reset:
                    continue
                self._discard(key)
                self.broken.pop(key, None)
                if self._keys.well_formed(self.family, key):
                    changed.add(key)
        finally:
            # Also when cancelled halfway: what is applied by then will not look changed the next time.
            self._tell(changed)

    def _see(
        self, shard: _Shard, items: list[RawEntry], seen: set[str], changed: set[str], *, reset: bool
    ) -> None:
        """One slice of an answer: nearly all of it is known already, and costs one comparison."""
        entries, numbers = self.entries, dict[int, int]()
        for raw in items:
            key, index = raw.key, raw.modify_index
            seen.add(key)
            known = entries.get(key)
            if known is not None:
                if known.index == index or (known.index > index and not reset):
                    continue
            elif is_sentinel(key):
                seen.discard(key)
                continue
            if shard.removed.get(key, 0) >= index:
                continue
            if key in self.broken and self.broken[key].fields.get("index") == index:
                continue
            if self._keys.well_formed(self.family, key):
                self._decode(shard, raw, numbers)
                changed.add(key)
            else:
                self._set_aside(raw, RecordInvalid(f"{key}: no record of {self.family} has such a key"))

    def _gone(self, shard: _Shard, seen: set[str]) -> set[str]:
        """Keys of a shard that an answer does not have; searched for only when the numbers differ."""
        gone = {key for key in self.broken if key.startswith(shard.prefix)} - seen
        if shard.count != sum(key in self.entries for key in seen):
            gone |= {key for key in self.entries if key.startswith(shard.prefix)} - seen
        return gone

    def _insert(self, shard: _Shard, stored: Stored[T]) -> None:
        if stored.key not in self.entries:
            shard.count += 1
        self.entries[stored.key] = stored

    def _discard(self, key: str) -> None:
        if self.entries.pop(key, None) is not None:
            self._shard_of(key).count -= 1

    def _decode(self, shard: _Shard, raw: RawEntry, numbers: dict[int, int]) -> None:
        value = raw.decoded()
        try:
            record = self._compact(codec.decode(self._kind, value, raw.key))
        except RecordInvalid as error:
            self._set_aside(raw, error)
            return
        self.broken.pop(raw.key, None)
        kept = value if self._keep_raw else b""
        # One number for all that a transaction wrote, and for both indexes of what was never rewritten.
        index = numbers.setdefault(raw.modify_index, raw.modify_index)
        created = numbers.setdefault(raw.create_index, raw.create_index)
        self._insert(shard, Stored(raw.key, record, index, kept, raw.flags, created))

    def _set_aside(self, raw: RawEntry, error: RecordInvalid) -> None:
        error.fields["index"] = raw.modify_index
        self.broken[raw.key] = error
        self._discard(raw.key)
        log.warning("record.invalid", error=error.message)

    # -- own commits (R23a) --------------------------------------------------------------------
    def wrote(self, key: str, record: Any, index: int, raw: bytes = b"") -> None:
        """Apply a write of a record of ``kind`` by this process; ``index`` is that of the commit."""
        known = self.entries.get(key)
        if known is not None and known.index >= index:
            return
        created = known.create_index if known is not None else index
        kept = raw if self._keep_raw else b""
        shard = self._shard_of(key)
        self._insert(shard, Stored(key, self._compact(record), index, kept, create_index=created))
        shard.removed.pop(key, None)

    def removed(self, key: str, index: int) -> None:
        """Apply a deletion by this process; ``index`` is that of the commit."""
        known = self.entries.get(key)
        if known is not None and known.index <= index:
            self._discard(key)
        self._shard_of(key).removed[key] = index

    def notify(self, keys: set[str]) -> None:
        """Tell subscribers of own commits that others must react to."""
        self._tell(keys)

    def _shard_of(self, key: str) -> _Shard:
        if len(self._shards) == 1:
            return self._shards[0]
        digit = key[len(self._prefix)]
        return self._shards[int(digit, 16) if digit in "0123456789abcdef" else 0]

    def _tell(self, changed: set[str]) -> None:
        if changed:
            for callback in self._subscribers:
                callback(changed)

    def _told(self, changed: set[str]) -> set[str]:
        self._tell(changed)
        return set()
