"""Which items rest after a crash: all that claiming wants to know of what workers note down (R10).

Workers write to ``work/`` whenever they move a pod or judge a node. If each of those woke every claim loop,
it would look through all items of the fleet again: with ten thousand that was most of what a farm did while
pods moved. A rest that begins wakes nobody, because nobody takes a held item; one that is called off may let
somebody take it sooner.
"""

from __future__ import annotations

from collections.abc import Callable

from farmd.farm.supervisor import due_in
from store.cache import PrefixCache
from store.ports import Clock
from store.work import Work


class Backoffs:
    """Follows the rests; ``called_off`` is called when one is over sooner than was said."""

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
