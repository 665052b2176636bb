"""A map from text keys to values that can be read by prefix; used for pairs and for tombstones.

A sorted list of keys stands beside a dictionary: two binary searches find a tree of 50,000 keys.
Python compares text by code points, which gives the same order as Consul's comparison of UTF-8 bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

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
