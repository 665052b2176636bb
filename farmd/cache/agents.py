"""What a farm believes of agents: where their nodes are reached, and whether a reality is up to date.

A node is reached as people say, otherwise as its agent said when it was announced. Write access to an
agent's presence could move its node's endpoints. So a farm keeps the host with which it saw a presence
first, until the agent has another session. An agent whose address changes takes another session itself.
Agents of older versions do not, and are believed. Another session with another host moves the endpoints, and
people are told for ten minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from farmd.cache.caches import Caches
from store.features import ADDRESS
from store.keys import Keys
from store.pods import Place
from store.presence import host


class _Seen(NamedTuple):
    """A presence, by the index of its creation, and the host that it named first."""

    created: int
    host: str
    firm: bool


class _Move(NamedTuple):
    """A change of a node's host with its agent's session, told until then (monotonic seconds)."""

    old: str
    new: str
    until: float


TOLD_SECONDS = 600.0


class Addresses:
    """The hosts of all nodes, as one farm saw them."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._caches, self._keys = caches, keys
        self._seen: dict[str, _Seen] = {}
        self._moved: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._moves: dict[str, _Move] = {}
        caches.on_forget(self._forget)
        caches.agents.subscribe(self._changed)

    def host(self, node: str) -> str:
        """The host of a node; empty if it is unknown, or if its agent is absent and no person set it."""
        stored = self._caches.nodes.get(self._keys.node(node))
        seen = self._seen.get(node)
        return (stored.record.address if stored is not None else "") or (
            seen.host if seen is not None else ""
        )

    def doubt(self, node: str) -> str:
        """Why a node's address is in doubt, or that it changed recently; empty: neither, or a person set
        it.
        """
        stored, moved = self._caches.nodes.get(self._keys.node(node)), self._moved.get(node)
        if stored is not None and stored.record.address:
            return ""
        if moved is None:
            return self._told(node)
        return (
            f"its agent reports the host {moved or 'none'} since it announced"
            f" {self._seen[node].host}, which stays in use until the agent starts a new session; to set it:"
            f" farmctl node set {node} --address HOST"
        )

    def told_for(self, node: str) -> float | None:
        """For how many more seconds a change of the node's host is reported; None: no recent change."""
        move = self._moves.get(node)
        left = 0.0 if move is None else move.until - self._caches.clock.mono()
        if move is not None and left <= 0:
            del self._moves[node]
        return left if left > 0 else None

    def _told(self, node: str) -> str:
        if self.told_for(node) is None:
            return ""
        move = self._moves[node]
        return (
            f"its host changed from {move.old} to {move.new} when its agent started a new session; if nobody"
            f" moved it, farmctl node set {node} --address {move.old} restores its endpoints"
        )

    def _forget(self) -> None:
        self._seen.clear()
        self._moved.clear()

    def _changed(self, changed: set[str]) -> None:
        for key in changed:
            node, stored = self._keys.last_part(key), self._caches.agents.get(key)
            if stored is None:
                if not self._caches.agents.holds(key):
                    self._seen.pop(node, None)
                    self._moved.pop(node, None)
                continue
            said, seen = host(stored.record.address), self._seen.get(node)
            if seen is not None and seen.firm and seen.created == stored.create_index and seen.host != said:
                self._moved[node] = said
                continue
            self._moved.pop(node, None)
            firm = ADDRESS in stored.record.features
            if seen is None or not seen.firm or seen.created != stored.create_index:
                self._seen[node] = _Seen(stored.create_index, said, firm)
                self._note(node, said)

    def _note(self, node: str, said: str) -> None:
        """Note the host of a new session, and whether it is another one than before."""
        before = self._last.get(node, "")
        if said and before and said != before:
            self._moves[node] = _Move(before, said, self._caches.clock.mono() + TOLD_SECONDS)
        if said:
            self._last[node] = said


# Whether what the store holds of a pod is its agent's present word, or may be of before it was away.
#
# An agent that comes back announces itself before it has looked at its pods, a restored snapshot brings back
# sessions and realities of the past, and an agent whose runtime does not answer cannot look. What must never
# break: the presence of an agent alone proves no reality.


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
