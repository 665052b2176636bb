"""Where nodes are reached: as people say, else as their agents said when they were announced.

Whoever may write an agent's presence could move its node's endpoints. So a farm keeps the host with which
it saw a presence first, until the agent has another session. An agent whose address changes takes another
session itself. Agents of older versions do not, and are believed. Another session with another host moves the
endpoints, and people are told for ten minutes.
"""

from __future__ import annotations

from typing import NamedTuple

from farmd.cache.caches import Caches
from store.features import ADDRESS
from store.keys import Keys
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
        """The host of a node; empty where none is known, or its agent is absent and people say nothing."""
        stored = self._caches.nodes.get(self._keys.node(node))
        seen = self._seen.get(node)
        return (stored.record.address if stored is not None else "") or (
            seen.host if seen is not None else ""
        )

    def doubt(self, node: str) -> str:
        """Why a node's address is doubted, or that it changed lately; empty: neither, or people say where the
        node is.
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
        """For how many seconds people are told of a change of its host; None: there was none lately."""
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
