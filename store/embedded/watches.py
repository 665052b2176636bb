"""The watches of blocking queries: a query registers here for keys or prefixes and is woken once.

A wake-up carries no data; the query reads again and compares the index. The cost of a change grows with the
number of distinct lengths of watched prefixes, not with the number of queries. The query that waits longest
is woken first, so that a test in virtual time is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Wake = Callable[[], None]


class TableWatches:
    """One registry for each table."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Wake, None]] = {}
        self._prefixes: dict[str, dict[Wake, None]] = {}
        self._lengths: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of registered watches."""
        return sum(map(len, self._exact.values())) + sum(map(len, self._prefixes.values()))

    def key(self, key: str, wake: Wake) -> Wake:
        """Call ``wake`` when this key changes; returns the cancellation."""
        self._exact.setdefault(key, {})[wake] = None
        return lambda: self._forget(self._exact, key, wake)

    def prefix(self, prefix: str, wake: Wake) -> Wake:
        """Call ``wake`` when any key under a prefix changes; returns the cancellation."""
        if prefix not in self._prefixes:
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        self._prefixes.setdefault(prefix, {})[wake] = None
        return lambda: self._forget_prefix(prefix, wake)

    def changed(self, keys: Iterable[str]) -> None:
        """Wake all watches of these keys, each once."""
        woken: dict[Wake, None] = {}
        for key in keys:
            woken |= self._exact.get(key, {})
            for length in self._lengths:
                if length <= len(key):
                    woken |= self._prefixes.get(key[:length], {})
        for wake in woken:
            wake()

    def _forget_prefix(self, prefix: str, wake: Wake) -> None:
        self._forget(self._prefixes, prefix, wake)
        if prefix not in self._prefixes:
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]

    @staticmethod
    def _forget(registry: dict[str, dict[Wake, None]], key: str, wake: Wake) -> None:
        waiting = registry[key]
        del waiting[wake]
        if not waiting:
            del registry[key]
