"""Follows the processes that nodes still run for owners that are being deleted.

An owner is followed from the first question about it until ``forget``: one pass over all realities, then only
changes. The owner's record stays until the processes are gone, so each end wakes its worker.
"""

from __future__ import annotations

from collections.abc import Callable

from farmd.cache.caches import Caches
from store.keys import Keys
from store.pods import Place

NAMED_AT_MOST = 3


class Processes:
    """Places by owner, as the agents reported last. ``lost``: since when a node is given up (0: it is
    not).
    """

    def __init__(
        self, caches: Caches, keys: Keys, lost: Callable[[str], float], wake: Callable[[set[str]], None]
    ) -> None:
        self._caches = caches
        self._keys = keys
        self._lost = lost
        self._wake = wake
        self._followed: dict[str, set[Place]] = {}
        caches.reality.subscribe(self._changed)
        caches.work.subscribe(self._verdicts)

    def of(self, owner: str) -> list[Place]:
        """The places where processes of an owner run, or may run: on nodes that are not given up (R21)."""
        return [place for place in self.known(owner) if not self._done(place)]

    def known(self, owner: str) -> list[Place]:
        """The same, with the places of processes that ended for good and whose agents still say how."""
        if owner not in self._followed:
            self._followed[owner] = {
                self._keys.reality_parts(key)
                for key, stored in self._caches.reality.entries.items()
                if stored.record.owner == owner
            }
        return sorted(place for place in self._followed[owner] if not self._lost(place[0]))

    def told(self, owner: str) -> str:
        """The processes of an owner as one line for people; empty if there are none."""
        places = self.of(owner)
        if not places:
            return ""
        names = ", ".join("/".join(place) + self._absent(place[0]) for place in places[:NAMED_AT_MOST])
        more = f" and {len(places) - NAMED_AT_MOST} more" if len(places) > NAMED_AT_MOST else ""
        return f"waiting until {len(places)} process{'es' * (len(places) > 1)} ended: {names}{more}"

    def _done(self, place: Place) -> bool:
        stored = self._caches.reality.get(self._keys.reality(*place))
        return stored is not None and stored.record.phase == "done"

    def forget(self, owner: str) -> None:
        """Stop following an owner, because its worker ended."""
        self._followed.pop(owner, None)

    def _absent(self, node: str) -> str:
        key, agents = self._keys.agent(node), self._caches.agents
        return "" if key in agents.entries or key in agents.broken else " (its agent is absent)"

    def _changed(self, changed: set[str]) -> None:
        if not self._followed:
            return
        for key in changed:
            place, stored = self._keys.reality_parts(key), self._caches.reality.get(key)
            for owner, places in self._followed.items():
                if stored is not None and stored.record.owner == owner:
                    places.add(place)
                    if stored.record.phase == "done":
                        self._wake({owner})
                elif place in places:
                    places.discard(place)
                    self._wake({owner})

    def _verdicts(self, changed: set[str]) -> None:
        """Wake owners of processes on nodes that were given up, because those are not waited for."""
        nodes = {self._keys.last_part(key) for key in changed if key.startswith(self._keys.work("nodes", ""))}
        if nodes and self._followed:
            self._wake(
                {owner for owner, places in self._followed.items() if any(at[0] in nodes for at in places)}
            )
