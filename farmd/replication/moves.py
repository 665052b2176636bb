"""Limits how many moves are under way in the whole fleet.

Moves are counted from the notes of all farms' workers, plus the moves that this farm is just starting. Farms
that start a move at the same moment may exceed the limit by one each; the limit protects the fleet from load,
and correctness does not need it. An item that waits owns no timer: the end of a move wakes the next.
"""

from __future__ import annotations

from collections.abc import Callable

from farmd.cache.caches import Caches
from store.families import owns_pods
from store.keys import Keys


class Moves:
    """The moves of all farms; at most ``limit`` at once."""

    def __init__(self, caches: Caches, keys: Keys, limit: int) -> None:
        self._caches = caches
        self._prefix = keys.tree("work")
        self._limit = limit
        self._under_way: set[str] = set()
        self._starting: set[str] = set()
        self._waiting: dict[str, Callable[[], None]] = {}
        caches.work.subscribe(self._changed)

    def __len__(self) -> int:
        return len(self._under_way | self._starting)

    def enter(self, item: str, wake: Callable[[], None]) -> bool:
        """Whether the item may start a move now; if not, ``wake`` is called when its turn may have come."""
        if item not in self._starting and len(self) >= self._limit:
            self._waiting.setdefault(item, wake)
            return False
        self._waiting.pop(item, None)
        self._starting.add(item)
        return True

    def leave(self, item: str) -> None:
        """Called at the end of the item's cycle; a started move is known by its note."""
        self._starting.discard(item)
        self._call()

    def forget(self, item: str) -> None:
        """Called at the end of the item's worker."""
        self._waiting.pop(item, None)
        self.leave(item)

    def _changed(self, changed: set[str]) -> None:
        for key in changed:
            kind, _, item = key[len(self._prefix) :].partition("/")
            if owns_pods(kind):
                stored = self._caches.work.get(key)
                moving = stored is not None and stored.record.transfer is not None
                (self._under_way.add if moving else self._under_way.discard)(item)
        self._call()

    def _call(self) -> None:
        if not self._waiting:
            return
        for item in list(self._waiting)[: max(0, self._limit - len(self))]:
            self._waiting.pop(item)()
