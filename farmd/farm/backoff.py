"""Tells the claim loops when a crashed item's backoff ends early (R10).

Workers write to ``work/`` whenever they move a pod or judge a node. If each write woke every claim loop, the
loops would look through all items of the fleet each time, which costs most of a farm's time with ten thousand
items. A new backoff wakes no loop, because the item is held. A backoff that is shortened or removed wakes the
loops, because a farm may claim the item sooner.
"""

from __future__ import annotations

from collections.abc import Callable

from farmd.farm.supervisor import due_in
from store.cache import PrefixCache
from store.ports import Clock
from store.work import Work


class Backoffs:
    """Follows the backoffs in ``work/``; calls ``called_off`` when one ends sooner than it said."""

    def __init__(self, work: PrefixCache[Work], clock: Clock, called_off: Callable[[], None]) -> None:
        self._work = work
        self._clock = clock
        self._called_off = called_off
        self._resting: dict[str, float] = {}
        work.subscribe(self._changed)

    def _changed(self, changed: set[str]) -> None:
        now, sooner = self._clock.now(), False
        for key in changed:
            stored = self._work.get(key)
            until = stored.record.not_before if stored is not None and due_in(stored.record, now) > 0 else 0.0
            sooner = sooner or until < self._resting.pop(key, 0.0)
            if until:
                self._resting[key] = until
        if sooner:
            self._called_off()
