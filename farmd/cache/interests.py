"""Wakes owners that depend on all nodes, and collects for each which nodes changed.

Changes are collected until the owner's worker asks: however many come at once, they cost one question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from farmd.cache.caches import Caches
from store.keys import Keys


@dataclass(slots=True)
class _Interest:
    """``resources``: reservations matter. ``pods``: all pods matter, not only those of one instance."""

    instance: str = ""
    resources: bool = False
    pods: bool = False
    changed: set[str] = field(default_factory=set)


class Interests:
    """The owners that follow all nodes, and what changed for each since its last question."""

    def __init__(self, caches: Caches, keys: Keys, wake: Callable[[set[str]], None]) -> None:
        self._wake = wake
        self._interests: dict[str, _Interest] = {}
        verdicts = keys.work("nodes", "")

        def of_nodes(changed: set[str]) -> None:
            self._tell(set(map(keys.last_part, changed)), lambda _: True)

        def of_work(changed: set[str]) -> None:
            of_nodes({key for key in changed if key.startswith(verdicts)})

        def of_reservations(changed: set[str]) -> None:
            self._tell(set(map(keys.last_part, changed)), lambda interest: interest.resources)

        caches.nodes.subscribe(of_nodes)
        caches.agents.subscribe(of_nodes)
        caches.work.subscribe(of_work)
        caches.reserved.subscribe(of_reservations)
        for tree in (caches.pods, caches.intent):
            tree.subscribe(self._places)

    def changed(self, owner: str, instance: str, *, resources: bool, pods: bool) -> set[str]:
        """The nodes that changed since the last call. From now on the owner is woken by changes of nodes,
        of pods and intents of that instance, and if it says so of reservations and of all pods.
        """
        before = self._interests.get(owner)
        self._interests[owner] = _Interest(instance, resources, pods)
        return before.changed if before is not None else set()

    def forget(self, owner: str) -> None:
        """Stop following nodes for an owner."""
        self._interests.pop(owner, None)

    def _tell(self, nodes: set[str], concerns: Callable[[_Interest], bool]) -> None:
        if not nodes:
            return
        owners = {owner for owner, interest in self._interests.items() if concerns(interest)}
        for owner in owners:
            self._interests[owner].changed |= nodes
        self._wake(owners)

    def _places(self, changed: set[str]) -> None:
        """Node and instance are the last two parts of the keys of pods and intents."""
        places = [key.rsplit("/", 2)[1:] for key in changed] if self._interests else []
        owners = set()
        for owner, interest in self._interests.items():
            nodes = {node for node, instance in places if interest.pods or instance == interest.instance}
            if nodes:
                interest.changed |= nodes
                owners.add(owner)
        self._wake(owners)
