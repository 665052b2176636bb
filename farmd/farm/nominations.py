"""Where pods wait for room that others must make, and whose pods may have to: indexes over the caches.

Whom a change of a nomination concerns is known here too. While nobody nominates, which is nearly always,
none of this costs anything.
"""

from __future__ import annotations

from collections.abc import Collection

from farmd.farm.caches import Caches
from store.keys import Keys

Place = tuple[str, str]
"""(node, instance)."""


class Nominations:
    """Kept up to date by ``World``, which wakes those whom a change concerns."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._caches = caches
        self._keys = keys
        self._nodes: dict[str, dict[str, str]] = {}
        self._yielding = set[str]()
        self._snapshot: frozenset[str] | None = None

    def on(self, node: str) -> bool:
        """Whether anybody waits for room on a node."""
        return node in self._nodes

    def of(self, owner: str) -> frozenset[Place]:
        """Where an owner waits for room."""
        return frozenset(
            (node, instance)
            for node, waiting in self._nodes.items()
            for instance, waits in waiting.items()
            if waits == owner
        )

    def yielding(self) -> frozenset[str]:
        """Owners whose pods leave for ones of higher priority: controllers that their workers may change."""
        if self._snapshot is None:
            self._snapshot = frozenset(self._yielding)
        return self._snapshot

    def changed(self, node: str) -> set[str]:
        """Note a node's record; returns the owners who waited there, or do now."""
        stored = self._caches.reserved.get(self._keys.reserved(node))
        before = self._nodes.pop(node, {})
        if stored is not None and stored.record.nominations:
            self._nodes[node] = {name: one.owner for name, one in stored.record.nominations.items()}
        return {*before.values(), *self._nodes.get(node, {}).values()}

    def nodes(self) -> Collection[str]:
        """The nodes on which anybody waits for room."""
        return self._nodes.keys()

    def controllers_changed(self, controllers: Collection[str]) -> set[str]:
        """Note records of controllers; returns those whose pods may be preempted from now on, or no more."""
        turned = set()
        for item in controllers:
            stored = self._caches.rcs.get(self._keys.record("rcs", item))
            yields = stored is not None and not stored.record.disabled and not stored.record.managed_by
            if yields != (item in self._yielding):
                (self._yielding.add if yields else self._yielding.discard)(item)
                turned.add(item)
        if turned:
            self._snapshot = None
        return turned
