"""What workers look things up in: indexes over the shared caches, kept as changes come (DESIGN: the cost
of a decision grows with what changed, never with the fleet).

It also knows whom a change concerns: the owner of a pod, of an intent, of a reality; and, for a changed
node, the owners of its pods and everybody who is still hungry for a place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farmd.farm.caches import Caches
from scheduler.fleet import Fleet
from scheduler.model import FleetView
from store.entry import Stored
from store.intent import Intent
from store.keys import Keys
from store.pods import Pod, PodKey
from store.reality import Glance

Place = tuple[str, str]
"""(node, instance)."""


class World:
    """Indexes over a farm's caches, and the wakers of its workers."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._caches = caches
        self._keys = keys
        self._fleet = Fleet()
        self._pods: dict[str, dict[Place, Stored[Pod]]] = {}
        self._wakers: dict[str, Callable[[], None]] = {}
        self._hungry: set[str] = set()
        self._blocked: set[str] = set()
        caches.pods.subscribe(self._pods_changed)
        caches.intent.subscribe(self._intents_changed)
        caches.reality.subscribe(self._realities_changed)
        caches.nodes.subscribe(self._nodes_changed)
        caches.agents.subscribe(self._agents_changed)
        caches.reserved.subscribe(self._reserved_changed)
        caches.rcs.subscribe(lambda changed: self._wake(map(keys.last_part, changed)))

    # -- looking things up ---------------------------------------------------------------------
    def pods(self, owner: str) -> Mapping[Place, Stored[Pod]]:
        """The pods of an owner, by place."""
        return self._pods.get(owner, {})

    def intent(self, place: Place) -> Stored[Intent] | None:
        """What the node must run there."""
        return self._caches.intent.get(self._keys.intent(*place))

    def reality(self, place: Place) -> Glance | None:
        """What the node runs there."""
        stored = self._caches.reality.get(self._keys.reality(*place))
        return stored.record if stored is not None else None

    def fleet(self) -> FleetView:
        """All nodes, with what stands on them."""
        return self._fleet.view()

    # -- waking workers ------------------------------------------------------------------------
    def attach(self, owner: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` when something of this owner's changed."""
        self._wakers[owner] = wake

    def detach(self, owner: str) -> None:
        """The owner's worker ended."""
        self._wakers.pop(owner, None)
        self._hungry.discard(owner)
        self._blocked.discard(owner)

    def block(self, owner: str, blocked: bool) -> None:
        """Whether the owner's worker is blocked, for the metric."""
        (self._blocked.add if blocked else self._blocked.discard)(owner)

    def blocked(self) -> int:
        """How many workers are blocked."""
        return len(self._blocked)

    def hunger(self, owner: str, hungry: bool) -> None:
        """Whether the owner waits for places: any change of a node then wakes it."""
        (self._hungry.add if hungry else self._hungry.discard)(owner)

    def _wake(self, owners: object) -> None:
        for owner in set(owners):  # type: ignore[call-overload]
            if (wake := self._wakers.get(owner)) is not None:
                wake()

    # -- changes -------------------------------------------------------------------------------
    def _pods_changed(self, changed: set[str]) -> None:
        owners = set()
        for key in changed:
            owner, node, instance = self._keys.pod_parts(key)
            stored = self._caches.pods.get(key)
            self._fleet.set_pod(PodKey(owner, node, instance), stored.record if stored else None)
            if stored is not None:
                self._pods.setdefault(owner, {})[node, instance] = stored
            elif owner in self._pods:
                self._pods[owner].pop((node, instance), None)
                if not self._pods[owner]:
                    del self._pods[owner]
            owners.add(owner)
        self._wake(owners)

    def _intents_changed(self, changed: set[str]) -> None:
        owners = set()
        for key in changed:
            owners.add(self._fleet.owner_at(*self._keys.intent_parts(key)))
            if (stored := self._caches.intent.get(key)) is not None:
                owners.add(stored.record.owner)
        self._wake(owners)

    def _realities_changed(self, changed: set[str]) -> None:
        owners = set()
        for key in changed:
            stored = self._caches.reality.get(key)
            at = (
                self._fleet.owner_at(*self._keys.reality_parts(key))
                if stored is None
                else stored.record.owner
            )
            owners.add(at)
        self._wake(owners)

    def _nodes_changed(self, changed: set[str]) -> None:
        names = {self._keys.last_part(key) for key in changed}
        for name in names:
            stored = self._caches.nodes.get(self._keys.node(name))
            self._fleet.set_node(name, stored.record if stored else None)
        self._node_views_changed(names)

    def _agents_changed(self, changed: set[str]) -> None:
        names = {self._keys.last_part(key) for key in changed}
        for name in names:
            stored = self._caches.agents.get(self._keys.agent(name))
            self._fleet.set_agent(name, stored.record if stored else None)
        self._node_views_changed(names)

    def _reserved_changed(self, changed: set[str]) -> None:
        names = {self._keys.last_part(key) for key in changed}
        for name in names:
            self._fleet.set_reserved(name, self._caches.reserved.get(self._keys.reserved(name)))
        self._wake(self._hungry)

    def _node_views_changed(self, names: set[str]) -> None:
        self._wake(self._owners_on(names) | self._hungry)

    def _owners_on(self, nodes: set[str]) -> set[str]:
        if not nodes:
            return set()
        view = self._fleet.view()
        return {owner for name in nodes if name in view for owner in view[name].owners}
