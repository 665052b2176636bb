"""Whether what the store holds of a pod is its agent's present word, or may be of before it was away.

An agent that comes back announces itself before it has looked at its pods, and a restored snapshot brings
back sessions and realities of the past. What must never break: the presence of an agent alone proves no
reality.
"""

from __future__ import annotations

import math

from farmd.cache.caches import Caches
from store.keys import Keys
from store.pods import Place

# By then a session that came back with a snapshot has expired, and an agent that is present has compared its
# realities with the store (R22).
ANSWER_SECONDS = 60.0


class Answers:
    """Since when this farm sees each agent's presence, by the index of its creation."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._caches, self._keys, self._clock = caches, keys, caches.clock
        self._seen: dict[str, tuple[int, float]] = {}
        caches.agents.subscribe(self._changed)

    def doubted(self, place: Place) -> float:
        """Seconds for which the reality at a place may be of the past; 0 or less: its agent answers."""
        now = self._clock.mono()
        restored = self._caches.began_anew + ANSWER_SECONDS - now
        created, since = self._seen.get(place[0], (0, -math.inf))
        said = self._caches.reality.get(self._keys.reality(*place))
        if said is not None and said.index > created:
            return restored
        return max(restored, since + ANSWER_SECONDS - now)

    def _changed(self, changed: set[str]) -> None:
        for key in changed:
            node, stored = self._keys.last_part(key), self._caches.agents.get(key)
            if stored is None:
                self._seen.pop(node, None)
            elif self._seen.get(node, (0, 0.0))[0] != stored.create_index:
                self._seen[node] = stored.create_index, self._clock.mono()
