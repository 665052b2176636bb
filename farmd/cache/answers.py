"""Whether what the store holds of a pod is its agent's present word, or may be of before it was away.

An agent that comes back announces itself before it has looked at its pods, a restored snapshot brings back
sessions and realities of the past, and an agent whose runtime does not answer cannot look. What must never
break: the presence of an agent alone proves no reality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from farmd.cache.caches import Caches
from store.keys import Keys
from store.pods import Place

# By then a session that came back with a snapshot has expired, and an agent that is present has compared its
# realities with the store (R22).
ANSWER_SECONDS = 60.0


@dataclass(slots=True)
class _Silence:
    """The last time in which a runtime could not tell what runs. ``before``: what asked the agent to compare
    until then was answered; ``ended``: infinite while it lasts.
    """

    before: float
    ended: float = math.inf


@dataclass(slots=True)
class _Presence:
    """One presence, by the index of its creation, since when it is seen, and the silences of its runtimes."""

    created: int
    since: float
    silences: dict[str, _Silence] = field(default_factory=dict)

    def tell(self, doubts: set[str], now: float) -> None:
        """Take in which runtimes are in doubt now."""
        for runtime, silence in self.silences.items():
            if runtime not in doubts and silence.ended > now:
                silence.ended = now
        for runtime in doubts:
            known = self.silences.get(runtime)
            if known is None or known.ended <= now:
                began = self.since if known is None else known.ended
                before = -math.inf if known is None else known.before
                answered = now - ANSWER_SECONDS
                self.silences[runtime] = _Silence(answered if began <= answered else before)

    def answers_in(self, sign: float, runtime: str, now: float) -> float:
        """Seconds until it has compared its realities since a sign that it must; 0 or less: it has."""
        silence = self.silences.get(runtime)
        if silence is None or sign <= silence.before:
            return sign + ANSWER_SECONDS - now
        if silence.ended > now:
            return ANSWER_SECONDS  # as long as it lasts: its end is a change of the presence
        return max(sign, silence.ended) + ANSWER_SECONDS - now


class Answers:
    """Since when this farm sees each agent's presence, and the runtimes there that cannot tell what runs."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._caches, self._keys, self._clock = caches, keys, caches.clock
        self._seen: dict[str, _Presence] = {}
        caches.agents.subscribe(self._changed)

    def doubted(self, place: Place, runtime: str) -> float:
        """Seconds for which the reality at a place may be of the past; 0 or less: its agent answers."""
        now = self._clock.mono()
        seen = self._seen.get(place[0], _Presence(0, -math.inf))
        restored = seen.answers_in(self._caches.began_anew, runtime, now)
        said = self._caches.reality.get(self._keys.reality(*place))
        if said is not None and said.index > seen.created:
            return restored
        return max(restored, seen.answers_in(seen.since, runtime, now))

    def _changed(self, changed: set[str]) -> None:
        now = self._clock.mono()
        for key in changed:
            node, stored = self._keys.last_part(key), self._caches.agents.get(key)
            if stored is None:
                self._seen.pop(node, None)
                continue
            seen = self._seen.get(node)
            if seen is None or seen.created != stored.create_index:
                seen = self._seen[node] = _Presence(stored.create_index, now)
            seen.tell(set(stored.record.doubts), now)
