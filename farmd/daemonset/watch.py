"""Whom a change concerns: daemon sets hear of every node that may have become theirs, or ceased to be.

A worker is told which nodes changed, so that it need not ask about the others again. Changes are collected
until it looks: however many come at once, they cost one question. Who shares a pod id with a daemon set
whose record changed is woken too, because the two may contend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from farmd.cache.caches import Caches
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.families import DAEMONSETS
from store.keys import Keys


@dataclass(slots=True)
class _Follower:
    """One worker here. ``resources``: its pods ask for some; ``pods``: other pods matter to it, wherever."""

    wake: Callable[[], None]
    pod_id: str = ""
    resources: bool = False
    pods: bool = False
    changed: set[str] = field(default_factory=set)


class Watch:
    """The daemon sets' workers of this farm, and what changed for each since it last looked."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._daemonsets = caches.tree(DAEMONSETS)
        self._keys = keys
        self._followers: dict[str, _Follower] = {}
        self._pod_ids: dict[str, str] = {}
        verdicts = keys.work("nodes", "")
        caches.nodes.subscribe(lambda changed: self._nodes(map(keys.last_part, changed)))
        caches.agents.subscribe(lambda changed: self._nodes(map(keys.last_part, changed)))
        caches.work.subscribe(
            lambda changed: self._nodes(keys.last_part(key) for key in changed if key.startswith(verdicts))
        )
        caches.reserved.subscribe(self._reserved)
        # Node and instance are the last two parts of a pod's key and of an intent's.
        for tree in (caches.pods, caches.intent):
            tree.subscribe(self._places)
        self._daemonsets.subscribe(self._records)
        self._records(set(self._daemonsets.entries))

    # -- workers -------------------------------------------------------------------------------
    def attach(self, item: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` when something changed that concerns this daemon set."""
        self._followers[item] = _Follower(wake)

    def detach(self, item: str) -> None:
        """Its worker ended."""
        self._followers.pop(item, None)

    def follow(self, item: str, pod_id: str, *, resources: bool, pods: bool) -> None:
        """What the worker's verdicts depend on besides the nodes themselves."""
        follower = self._followers[item]
        follower.pod_id, follower.resources, follower.pods = pod_id, resources, pods

    def take(self, item: str) -> set[str]:
        """The nodes that changed since the last call."""
        follower = self._followers[item]
        changed, follower.changed = follower.changed, set()
        return changed

    # -- contention ----------------------------------------------------------------------------
    def elders(self, item: str) -> list[Stored[DaemonSet]]:
        """Enabled daemon sets of the same pod id that were there first, the oldest first."""
        stored = self._daemonsets.get(self._keys.record("daemonsets", item))
        if stored is None:
            return []
        rivals = [
            other
            for rival, pod_id in self._pod_ids.items()
            if pod_id == stored.record.pod_id and rival != item
            if (other := self._daemonsets.get(self._keys.record("daemonsets", rival))) is not None
        ]
        elders = [other for other in rivals if other.record.wants_pods and _age(other) < _age(stored)]
        return sorted(elders, key=_age)

    # -- changes -------------------------------------------------------------------------------
    def _nodes(self, names: Iterable[str]) -> None:
        if changed := set(names):
            for follower in self._followers.values():
                follower.changed |= changed
                follower.wake()

    def _reserved(self, changed: set[str]) -> None:
        names = set(map(self._keys.last_part, changed))
        for follower in self._followers.values():
            if follower.resources:
                follower.changed |= names
                follower.wake()

    def _places(self, changed: set[str]) -> None:
        if not self._followers:
            return
        places = [key.rsplit("/", 2)[1:] for key in changed]
        for follower in self._followers.values():
            nodes = {node for node, instance in places if follower.pods or instance == follower.pod_id}
            if nodes:
                follower.changed |= nodes
                follower.wake()

    def _records(self, changed: set[str]) -> None:
        concerned = set()
        for key in changed:
            item, stored = self._keys.last_part(key), self._daemonsets.get(key)
            concerned |= {item}
            pod_ids = {self._pod_ids.pop(item, "")}
            if stored is not None:
                self._pod_ids[item] = stored.record.pod_id
                pod_ids.add(stored.record.pod_id)
            concerned |= {other for other, pod_id in self._pod_ids.items() if pod_id and pod_id in pod_ids}
        for item in concerned & self._followers.keys():
            self._followers[item].wake()


def _age(stored: Stored[DaemonSet]) -> tuple[int, str]:
    """Sorts daemon sets by when they were created; Consul knows that better than any clock."""
    return stored.create_index, stored.record.id
