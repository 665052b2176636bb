"""The key-value table: pairs, tombstones and the indexes of blocking queries.

Every change has a raft index. The index of a prefix must never go down while the tombstone of a
deletion under it exists, and a write that changes nothing must never move an index. A journal keeps
the changes until ``commit``, so that a transaction can be rolled back.

Source: Consul 1.8 ``agent/consul/state/kvs.go`` and ``graveyard.go``, behaviour only; each rule is
measured by the contract cases.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

# A map from text keys to values that can be read by prefix; used for pairs and for tombstones.
#
# A sorted list of keys stands beside a dictionary: two binary searches find a tree of 50,000 keys.
# Python compares text by code points, which gives the same order as Consul's comparison of UTF-8 bytes.

V = TypeVar("V")

_LAST = "\U0010ffff"
_END = "\0"  # ends each key in Consul's index, so that no key is a prefix of another


class OrderedMap(Generic[V]):
    """Text keys in order; the cost of reading by prefix grows with the answer only."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._values: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def get(self, key: str) -> V | None:
        """The value, or None."""
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        """Insert or replace."""
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value

    def pop(self, key: str) -> None:
        """Remove a key, which must exist."""
        del self._values[key]
        del self._keys[bisect_left(self._keys, key)]

    def under(self, prefix: str) -> list[str]:
        """The keys that start with ``prefix``, in order."""
        low, high = self._range(prefix)
        return self._keys[low:high]

    def values_under(self, prefix: str) -> list[V]:
        """The values of ``under(prefix)``, in the same order."""
        values = self._values
        return [values[key] for key in self.under(prefix)]

    def drop_under(self, prefix: str) -> list[tuple[str, V]]:
        """Remove all keys that start with ``prefix`` and return them with their values."""
        low, high = self._range(prefix)
        dropped = [(key, self._values.pop(key)) for key in self._keys[low:high]]
        del self._keys[low:high]
        return dropped

    def watched_for(self, absent: str) -> str:
        """The prefix whose changes wake a watch on a missing key in Consul.

        Consul's index is a radix tree, and a watch on a missing key is set on the node where the search
        ended: changes in that node's whole subtree wake it, those of neighbouring keys included.
        ``absent`` is a missing key, or a prefix with nothing under it.
        """
        text = absent + _END
        place = bisect_left(self._keys, absent)
        depth = max(self._shared(text, place - 1), self._shared(text, place))
        if depth == 0:
            return ""  # the root is always a node
        low, high = self._range(absent[:depth])
        if depth == _common(self._keys[low] + _END, self._keys[high - 1] + _END):
            return absent[:depth]
        parent = max(self._shared(text, low - 1), self._shared(text, high))
        return absent[: parent + 1]

    def _shared(self, text: str, place: int) -> int:
        return _common(text, self._keys[place] + _END) if 0 <= place < len(self._keys) else 0

    def _range(self, prefix: str) -> tuple[int, int]:
        low = bisect_left(self._keys, prefix)
        stem = prefix.rstrip(_LAST)
        if not stem:
            return low, len(self._keys)
        return low, bisect_left(self._keys, stem[:-1] + chr(ord(stem[-1]) + 1), low)


def _common(left: str, right: str) -> int:
    """How many leading characters two texts share."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    return next(place for place in range(limit) if left[place] != right[place])


class Pair(msgspec.Struct, rename="pascal", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One pair, with Consul's order of fields; ``Session`` is left out if no session holds the key."""

    lock_index: int
    key: str
    flags: int
    value: bytes | None
    session: str = ""
    create_index: int
    modify_index: int


class KeyValues:
    """The table. ``index`` is that of the last change."""

    def __init__(self) -> None:
        self.index = 0
        self._pairs: OrderedMap[Pair] = OrderedMap()
        self._tombstones: OrderedMap[int] = OrderedMap()
        self._held: dict[str, set[str]] = {}
        self._journal: list[tuple[str, Pair | None]] = []
        self._buried: list[tuple[str, int | None]] = []
        self._before = 0

    # Reading

    def get(self, key: str) -> Pair | None:
        """One pair, or None."""
        return self._pairs.get(key)

    def under(self, prefix: str) -> list[Pair]:
        """All pairs whose keys start with ``prefix``, by key."""
        return self._pairs.values_under(prefix)

    def held_by(self, session: str) -> list[str]:
        """The keys that a session holds, by key."""
        return sorted(self._held.get(session, ()))

    def index_of(self, key: str) -> int:
        """The index of an answer about one key: the key's, or the table's if the key does not exist."""
        pair = self._pairs.get(key)
        return self.table_index() if pair is None else pair.modify_index

    def index_under(self, prefix: str, pairs: list[Pair]) -> int:
        """The index of an answer about a prefix with the pairs under it.

        It is that of the newest pair or tombstone. A prefix without any has the table's index, which
        moves with every write; so has the empty prefix.
        """
        newest = max((pair.modify_index for pair in pairs), default=0)
        if not prefix:
            return self.table_index()
        newest = max(newest, max(self._tombstones.values_under(prefix), default=0))
        return newest or self.table_index()

    def table_index(self) -> int:
        """The table's index, at least 1, because a query with index 0 does not block."""
        return max(self.index, 1)

    def watched_for(self, key: str) -> str:
        """See ``OrderedMap.watched_for``."""
        return self._pairs.watched_for(key)

    # Changing

    def begin(self) -> None:
        """Start a change that ``commit`` or ``rollback`` ends."""
        self._before = self.index
        self._journal.clear()
        self._buried.clear()

    def commit(self) -> list[str]:
        """Keep the change and return the changed keys, each once."""
        return list(dict.fromkeys(key for key, _ in self._journal))

    def buried(self) -> bool:
        """Whether the change since ``begin`` left tombstones."""
        return bool(self._buried)

    def rollback(self) -> None:
        """Undo everything since ``begin``."""
        for key, before in reversed(self._journal):
            self._place(key, before)
        for key, index in reversed(self._buried):
            self._set_tombstone(key, index)
        self.index = self._before

    def write(self, index: int, pair: Pair) -> Pair:
        """Store ``pair`` with its indexes set here; an equal pair changes nothing.

        Returns:
            The stored pair: the old one, with its old index, if nothing changed.
        """
        before = self._pairs.get(pair.key)
        if before is not None and _equal(before, pair):
            return before
        created = index if before is None else before.create_index
        pair = msgspec.structs.replace(pair, create_index=created, modify_index=index)
        self._journal.append((pair.key, before))
        self._place(pair.key, pair)
        self.index = index
        return pair

    def delete(self, index: int, key: str) -> None:
        """Delete one key and leave a tombstone; a missing key is ignored."""
        before = self._pairs.get(key)
        if before is None:
            return
        self._journal.append((key, before))
        self._place(key, None)
        self._bury(index, key)

    def delete_under(self, index: int, prefix: str) -> None:
        """Delete all keys under a prefix and leave one tombstone for the prefix.

        Deleting the whole table leaves none, because the empty prefix has the table's index.
        """
        gone = self._pairs.drop_under(prefix)
        if not gone:
            return
        for key, pair in gone:
            self._journal.append((key, pair))
            self._let_go(pair)
        self.index = index
        if prefix:
            self._bury(index, prefix)

    def reap(self, index: int) -> None:
        """Drop the tombstones up to an index; they are kept for 15 minutes."""
        old = [key for key in self._tombstones if (self._tombstones.get(key) or 0) <= index]
        for key in old:
            self._tombstones.pop(key)

    # Persistence

    def dump(self) -> tuple[list[Pair], list[tuple[str, int]]]:
        """All pairs and all tombstones."""
        return self.under(""), [(key, self._tombstones.get(key) or 0) for key in self._tombstones]

    def load(self, pairs: list[Pair], tombstones: list[tuple[str, int]]) -> None:
        """Fill an empty table."""
        for pair in pairs:
            self._place(pair.key, pair)
        for key, index in tombstones:
            self._tombstones.put(key, index)

    def _place(self, key: str, pair: Pair | None) -> None:
        before = self._pairs.get(key)
        if before is not None:
            self._let_go(before)
        if pair is not None:
            self._pairs.put(key, pair)
            if pair.session:
                self._held.setdefault(pair.session, set()).add(key)
        elif before is not None:
            self._pairs.pop(key)

    def _let_go(self, pair: Pair) -> None:
        keys = self._held.get(pair.session)
        if keys is not None:
            keys.discard(pair.key)
            if not keys:
                del self._held[pair.session]

    def _bury(self, index: int, key: str) -> None:
        self._buried.append((key, self._tombstones.get(key)))
        self._tombstones.put(key, index)
        self.index = index

    def _set_tombstone(self, key: str, index: int | None) -> None:
        if index is None:
            self._tombstones.pop(key)
        else:
            self._tombstones.put(key, index)


def _equal(before: Pair, after: Pair) -> bool:
    return (
        before.value == after.value
        and before.flags == after.flags
        and before.session == after.session
        and before.lock_index == after.lock_index
    )
