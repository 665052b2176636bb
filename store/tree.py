"""A typed copy of one tree of keys in memory, and how answers and own commits change it (R20, R23).

An answer without the tree's sentinel is no proof of absence: it changes nothing and sets ``doubt``. Only
entries whose ModifyIndex changed are decoded, in slices, so that a large tree does not stall the loop. The
error of a record that does not decode is kept in ``broken``; other records are not affected.

After the store was restored from a snapshot, an answer may hold older records than the copy: a record with a
lower index is accepted if the answer's index is not below that of the known record. Such an answer proves the
restore, and ``on_restore`` is called.

A process applies its own commits at once (``wrote``, ``removed``); an answer that is older than such a commit
does not undo it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from store import codec, families
from store.entry import Page, RawEntry, Stored
from store.errors import RecordInvalid
from store.keys import Keys, is_sentinel
from store.parts import Portion
from store.ports import Clock

# What a copy of a tree knows of one of its parked queries (R20, R23).


@dataclass(slots=True)
class Shard:
    """One parked query: its prefix, the index of its last answer, and the state of the keys under it.

    ``count`` is the number of known records, and ``names`` of those below each key up to the next slash.
    ``removed`` holds this process's deletions until an answer is as new as they are. ``parts``: of a large
    shard, the index of each part that the copy is as new as. ``anew``: the known
    records are of before a restore; the next answer replaces them all, and all its keys count as changed.
    """

    prefix: str
    index: int = 0
    read: bool = False
    anew: bool = False
    doubt: str | None = None
    count: int = 0
    names: Counter[str] = field(default_factory=Counter)
    removed: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    answered: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def lacks(self, page: Page[RawEntry], key: str, value: bytes) -> str | None:
        """Why an answer is no proof of absence; None if it has the sentinel with the cluster's id."""
        for raw in page.items:
            if raw.key == key:
                return None if raw.decoded() == value else "its sentinel has another cluster's id"
        return "the answer lacks the sentinel"

    def accepted(self, index: int) -> None:
        """An answer with this index was applied."""
        self.index = index
        self.read = True
        self.anew = False
        self.doubt = None
        self.removed = {key: since for key, since in self.removed.items() if since > index}

    def forgotten(self) -> Shard:
        """The same query, none of whose answers counts any more."""
        return Shard(
            self.prefix,
            anew=True,
            doubt=self.doubt,
            count=self.count,
            names=self.names,
            answered=self.answered,
        )

    def name(self, key: str) -> str:
        """A key up to the next slash."""
        slash = key.find("/", len(self.prefix))
        return key if slash < 0 else key[: slash + 1]

    def came(self, key: str) -> None:
        """Count a record that was not known."""
        self.count += 1
        slash = key.find("/", len(self.prefix)) + 1
        if slash:
            self.names[key[:slash]] += 1

    def went(self, key: str) -> None:
        """Count a record no more."""
        self.count -= 1
        if (name := self.name(key)) != key:
            self.names[name] -= 1
            if not self.names[name]:
                del self.names[name]


T = TypeVar("T")
log = structlog.get_logger()

SPLIT_ABOVE = 1000
SLICE = 500


class TreeCopy(Generic[T]):
    """The records of ``keys.tree(family)``, by key; ``store.cache.PrefixCache`` keeps them fresh."""

    def __init__(
        self,
        keys: Keys,
        family: str,
        kind: type[Any],
        *,
        cluster: str,
        clock: Clock,
        sharded: bool,
        keep_raw: bool,
        keep_unknown: bool,
        compact: Callable[[Any], T],
        on_restore: Callable[[], None],
        dated: Callable[[T, T | None, float], T] | None = None,
    ) -> None:
        self._keys = keys
        self._kind = kind
        self._sentinel = msgspec.json.encode(cluster)
        self._clock = clock
        self._sharded = sharded
        self._keep_raw = keep_raw
        self._keep_unknown = keep_unknown
        self._compact = compact
        self._on_restore = on_restore
        self._dated = dated
        self.family = family
        self._prefix = keys.tree(family)
        self._well_formed = families.form(keys, family).fullmatch
        self._shards = [Shard(self._prefix)]
        self._subscribers: list[Callable[[set[str]], None]] = []
        self._split = asyncio.Event()
        self.entries: dict[str, Stored[T]] = {}
        self.broken: dict[str, RecordInvalid] = {}
        self.ready = asyncio.Event()
        self.whole_since = math.inf
        """When this process first knew the whole tree, by its monotonic clock."""

    # -- reading -------------------------------------------------------------------------------
    def get(self, key: str) -> Stored[T] | None:
        """The record at a key, as it was last read."""
        return self.entries.get(key)

    def holds(self, key: str) -> bool:
        """Whether a key has a record, including one that does not decode."""
        return key in self.entries or key in self.broken

    def knows(self, key: str, index: int) -> bool:
        """Whether a write of this key with that index is in this copy, or was undone since."""
        shard = self._shard_of(key)
        return index <= max(shard.index, shard.removed.get(key, 0))

    @property
    def index(self) -> int:
        """The highest index of the answers that this copy was made from."""
        return max(shard.index for shard in self._shards)

    @property
    def doubt(self) -> str | None:
        """Why this copy is no proof of absence now; None if it is (R19, R20)."""
        return next((f"{self.family}: {shard.doubt}" for shard in self._shards if shard.doubt), None)

    def subscribe(self, callback: Callable[[set[str]], None]) -> None:
        """Call ``callback`` after each change, with the keys that were changed, added or removed."""
        self._subscribers.append(callback)

    def _divide(self) -> None:
        """Replace one query by 16; the known records stay."""
        (whole,) = self._shards
        self._shards = [
            Shard(prefix, answered=whole.answered) for prefix in families.shards(self._keys, self.family)
        ]
        for key in self.entries:
            self._shard_of(key).came(key)
        for key, index in whole.removed.items():
            self._shard_of(key).removed[key] = index
        self._split = asyncio.Event()

    def _forget(self) -> None:
        """Keep the known records until the next answers replace them, and clear ``ready``."""
        self._shards = [shard.forgotten() for shard in self._shards]
        self.ready.clear()

    # -- applying answers ----------------------------------------------------------------------
    async def _accept(self, shard: Shard, page: Page[RawEntry], asked: int) -> None:
        """Apply an answer. ``asked`` is the shard's index at the time of the request.

        An index below ``asked`` means that the server's index went back. An index that is only below that of
        an answer that came meanwhile belongs to an older answer, which is ignored.
        """
        async with shard.lock:
            if asked <= page.index < shard.index:
                return
            await self._take_in(shard, page)

    def _lacks(self, shard: Shard, page: Page[RawEntry]) -> str | None:
        """Why an answer proves nothing; None if it does."""
        return shard.lacks(page, self._keys.sentinel(shard.prefix), self._sentinel)

    async def _take_in(self, shard: Shard, page: Page[RawEntry]) -> None:
        if doubt := self._lacks(shard, page):
            if shard.doubt != doubt:
                log.warning("cache.doubt", tree=self.family, prefix=shard.prefix, reason=doubt)
            shard.doubt = doubt
            return
        reset = shard.anew or page.index < shard.index
        if reset:
            shard.removed.clear()
            shard.parts = {}
        await self._apply(shard, page, math.inf if reset else page.index)
        shard.accepted(page.index)
        if isinstance(page, Portion):
            shard.parts = page.parts
        if not self.ready.is_set() and all(s.read for s in self._shards):
            self.ready.set()
            self.whole_since = min(self.whole_since, self._clock.mono())
        if self._sharded and len(self._shards) == 1 and len(page.items) > SPLIT_ABOVE:
            self._split.set()

    async def _apply(self, shard: Shard, page: Page[RawEntry], until: float) -> None:
        """Apply an answer in slices, and notify once at its end: no plan may be made from half an answer.

        Only the first answer notifies after each slice; no plan is made before it is complete. A known record
        with an index above ``until`` is this process's own commit, which is newer than the answer.
        """
        changed, entries = set[str](), self.entries
        # Most entries are as they were, and cost one comparison.
        news = [
            raw
            for raw in page.items
            if shard.anew or (known := entries.get(raw.key)) is None or known.index != raw.modify_index
        ]
        try:
            for start in range(0, len(news), SLICE):
                if start:
                    if not shard.read:
                        self.notify(changed)
                        changed = set()
                    await self._clock.sleep(0)
                self._see(shard, news[start : start + SLICE], changed, until)
            for key in self._gone(shard, page):
                gone = entries.get(key)
                if gone is not None and gone.index > page.index:
                    if gone.index > until:
                        continue
                    self._taken_back(shard, key)
                self._discard(key)
                self.broken.pop(key, None)
                if families.well_formed(self._keys, self.family, key):
                    changed.add(key)
        finally:
            # Also after a cancellation: the keys applied so far will not look changed the next time.
            self.notify(changed)

    def _taken_back(self, shard: Shard, key: str) -> None:
        """Report a restore: the answer is as new as a known record and has an older one, or none."""
        if not shard.anew:
            log.warning("cache.taken_back", tree=self.family, key=key)
            self._on_restore()

    def _see(self, shard: Shard, items: list[RawEntry], changed: set[str], until: float) -> None:
        """Apply entries of an answer that are not known as they are there.

        A start sees all of a fleet's records here, so what is nearly always empty is asked for once.
        """
        numbers = dict[int, int]()
        entries, broken, removed, well_formed = self.entries, self.broken, shard.removed, self._well_formed
        for raw in items:
            key, index = raw.key, raw.modify_index
            known = entries.get(key)
            if known is not None:
                if known.index > until or (known.index == index and not shard.anew):
                    continue
                if known.index > index:
                    self._taken_back(shard, key)
            elif is_sentinel(key):
                continue
            if removed and ((gone := removed.get(key, 0)) > until or gone == index):
                continue
            if broken and key in broken and broken[key].fields.get("index") == index and not shard.anew:
                continue
            if well_formed(key) is not None:
                self._decode(shard, raw, numbers)
                changed.add(key)
            else:
                self._set_aside(raw, RecordInvalid(f"{key}: no record of {self.family} has such a key"))

    def _gone(self, shard: Shard, page: Page[RawEntry]) -> set[str]:
        """Keys of a shard that are missing in an answer; searched for only if the numbers differ."""
        keys = [raw.key for raw in page.items]
        if isinstance(page, Portion):
            return self._gone_of(shard, page, set(keys))
        differ = shard.count != sum(map(self.entries.__contains__, keys))
        known = chain(self.broken, self.entries) if differ else self.broken
        return {key for key in known if key.startswith(shard.prefix)}.difference(keys)

    def _differ(self, shard: Shard, page: Portion, keys: set[str]) -> bool:
        """Whether more records are known than the parts of an answer, and its names, allow."""
        if not shard.names:
            return shard.count != sum(map(self.entries.__contains__, page.names))
        known = sum(count for name, count in shard.names.items() if name.startswith(page.below))
        return not shard.names.keys() <= page.names or known != sum(map(self.entries.__contains__, keys))

    def _gone_of(self, shard: Shard, page: Portion, keys: set[str]) -> set[str]:
        """Keys of a shard that are missing in the parts of an answer, or whose names are."""
        gone = set[str]()
        for key in chain(self.broken, self.entries) if self._differ(shard, page, keys) else self.broken:
            if not key.startswith(shard.prefix) or key in keys:
                continue
            if key.startswith(page.below) or shard.name(key) not in page.names:
                gone.add(key)
        return gone

    def _insert(self, shard: Shard, stored: Stored[T]) -> None:
        key = stored.key
        if key not in self.entries:
            shard.came(key)
        if self.broken:
            self.broken.pop(key, None)
        self.entries[key] = stored

    def _discard(self, key: str) -> None:
        if self.entries.pop(key, None) is not None:
            self._shard_of(key).went(key)

    def _decode(self, shard: Shard, raw: RawEntry, numbers: dict[int, int]) -> None:
        key, value = raw.key, raw.decoded()
        try:
            decoded = codec.decode(self._kind, value, key)
            record = self._kept(shard, key, decoded)
        except RecordInvalid as error:
            self._set_aside(raw, error)
            return
        kept = self._worth_keeping(decoded, value) if self._keep_raw or self._keep_unknown else b""
        # Keys of one transaction, and both indexes of a record that was never rewritten, share a number.
        index = numbers.setdefault(raw.modify_index, raw.modify_index)
        created = numbers.setdefault(raw.create_index, raw.create_index)
        self._insert(shard, Stored(key, record, index, kept, raw.flags, created))

    def _kept(self, shard: Shard, key: str, record: Any) -> T:
        """The compacted record; if the family is dated, with the time of the answer."""
        compacted = self._compact(record)
        if self._dated is None:
            return compacted
        before = self.entries.get(key)
        return self._dated(compacted, None if before is None else before.record, shard.answered)

    def _worth_keeping(self, record: Any, raw: bytes) -> bytes:
        """A record's value, if it will be needed to rewrite the record."""
        unknown = self._keep_unknown and raw and not codec.encodes_to(record, raw)
        return raw if self._keep_raw or unknown else b""

    def _set_aside(self, raw: RawEntry, error: RecordInvalid) -> None:
        error.fields["index"] = raw.modify_index
        self.broken[raw.key] = error
        self._discard(raw.key)
        log.warning("record.invalid", error=error.message)

    # -- own commits (R23a) --------------------------------------------------------------------
    def wrote(self, key: str, record: Any, index: int, raw: bytes = b"") -> None:
        """Apply a write of a record of ``kind`` by this process; ``index`` is that of the commit."""
        known = self.entries.get(key)
        if (known is not None and known.index >= index) or self._broken_at(key) > index:
            return
        created = known.create_index if known is not None else index
        kept = self._worth_keeping(record, raw)
        shard = self._shard_of(key)
        self._insert(shard, Stored(key, self._kept(shard, key, record), index, kept, create_index=created))
        shard.removed.pop(key, None)

    def removed(self, key: str, index: int) -> None:
        """Apply a deletion by this process; ``index`` is that of the commit."""
        known = self.entries.get(key)
        if known is not None and known.index <= index:
            self._discard(key)
        if self._broken_at(key) <= index:
            self.broken.pop(key, None)
        self._shard_of(key).removed[key] = index

    def _broken_at(self, key: str) -> int:
        """The index of an entry that does not decode; 0: there is none."""
        error = self.broken.get(key)
        return 0 if error is None else int(error.fields.get("index", 0))

    def notify(self, changed: set[str]) -> None:
        """Call the subscribers; for own commits only where other workers must react."""
        if changed:
            for callback in self._subscribers:
                callback(changed)

    def _shard_of(self, key: str) -> Shard:
        if len(self._shards) == 1:
            return self._shards[0]
        digit = key[len(self._prefix)]
        return self._shards[int(digit, 16) if digit in "0123456789abcdef" else 0]
