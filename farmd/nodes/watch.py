"""Wakes the workers of nodes at changes of their nodes, and of their pods while they drain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from farmd.cache.caches import Caches
from farmd.runtime.wake import Wake
from store.keys import Keys


class NodeWakers:
    """The wakers of this farm's node workers."""

    def __init__(self, caches: Caches, keys: Keys) -> None:
        self._wakers: dict[str, Wake] = {}
        self._observed: set[str] = set()
        verdicts = keys.work("nodes", "")

        def of_work(changed: set[str]) -> None:
            self.wake(keys.last_part(key) for key in changed if key.startswith(verdicts))

        def at(position: int) -> Callable[[set[str]], None]:
            def of_pods(changed: set[str]) -> None:
                if self._observed:
                    self.wake({key.split("/")[position] for key in changed} & self._observed)

            return of_pods

        def of_agents(changed: set[str]) -> None:
            self.wake(keys.last_part(key) for key in changed)

        caches.work.subscribe(of_work)
        caches.agents.subscribe(of_agents)  # its address may be doubted
        # The node is the last part but one of every pod's key.
        for tree in (caches.pods, caches.intent, caches.reality):
            tree.subscribe(at(-2))

    def attach(self, node: str, wake: Wake) -> None:
        """Set ``wake`` when something of this node's changed."""
        self._wakers[node] = wake

    def detach(self, node: str) -> None:
        """Undo ``attach``."""
        self._wakers.pop(node, None)
        self._observed.discard(node)

    def follow(self, node: str, *, pods: bool) -> None:
        """Note whether changes of its pods wake the node's worker."""
        (self._observed.add if pods else self._observed.discard)(node)

    def wake(self, nodes: Iterable[str]) -> None:
        """Wake those of the nodes' workers that are in this farm."""
        for node in nodes:
            if (wake := self._wakers.get(node)) is not None:
                wake.set()
