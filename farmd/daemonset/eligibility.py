"""Finds the nodes that are eligible for a daemon set; the scheduler is asked again only about changed nodes.

The verdict on a node depends on that node alone, unless the manifest has rules across nodes; then every
question covers the whole fleet. So a converged daemon set costs nothing, and a changed node one verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from farmd.pods.state import PodState
from scheduler.model import EVICTING, FleetView, PlacementRequest
from scheduler.protocol import Scheduler
from store.daemonsets import DAEMON_SET_ID_LABEL, DaemonSet
from store.labels import POD_ID_LABEL
from store.manifests import Manifest
from store.pods import Place
from store.selectors import parse

# A pod stays on a node that is given up: it may still run there, and belongs there when the node returns.
STAYING = frozenset({"agent_lost"})


def request(daemonset: DaemonSet, manifest: Manifest) -> PlacementRequest:
    """The request to the scheduler for a daemon set."""
    labels = {**daemonset.pod_labels, POD_ID_LABEL: manifest.id, DAEMON_SET_ID_LABEL: daemonset.id}
    return PlacementRequest(
        manifest=manifest,
        selector=parse(daemonset.node_selector),
        owner=daemonset.id,
        labels=labels,
        numbered=daemonset.numbered,
    )


class Verdicts:
    """The scheduler's verdict on each node: the codes of its reasons against the node, none if it is
    eligible.
    """

    __slots__ = ("_codes", "_key")

    def __init__(self) -> None:
        self._codes: dict[str, frozenset[str]] = {}
        self._key: Any = None

    async def refresh(
        self,
        scheduler: Scheduler,
        request: PlacementRequest,
        view: FleetView,
        changed: Collection[str],
        key: Any,
    ) -> bool:
        """Ask about the changed nodes; about all nodes at first, when ``key`` changed, and where rules across
        nodes apply. Returns whether anything was asked.

        Raises:
            SchedulerError: no trustworthy answer; all is asked again the next time.
        """
        undecided = {node for node, codes in self._codes.items() if "contended" in codes}
        stale = {*changed, *undecided}
        if key == self._key and not stale:
            return False
        whole = key != self._key or across_nodes(request)
        self._key = None
        if not whole:
            request = msgspec.structs.replace(request, among=frozenset(stale & view.keys()))
        answer = await scheduler.eligible_nodes(request, view)
        if whole:
            self._codes.clear()
        for node in stale:
            self._codes.pop(node, None)
        self._codes.update((node, frozenset()) for node in answer.eligible)
        for node, reasons in answer.refused.items():
            self._codes[node] = frozenset(reason.code for reason in reasons)
        self._key = key
        return True

    def eligible(self) -> set[str]:
        """Nodes that should have a pod."""
        return {node for node, codes in self._codes.items() if not codes}

    def keeps(self, node: str) -> bool:
        """Whether a pod on the node may stay."""
        codes = self._codes.get(node)
        return codes is not None and not codes & (EVICTING - STAYING)

    def draining(self, node: str) -> bool:
        """Whether a drain, which is a person's command on that very node, sends its pod away."""
        return "draining" in self._codes.get(node, frozenset())

    def refused(self) -> Mapping[str, int]:
        """How many nodes have each reason against them."""
        return Counter(code for codes in self._codes.values() for code in codes)


def one_a_node(daemonset: DaemonSet, pods: Mapping[Place, PodState]) -> dict[Place, PodState]:
    """The pods, of which at most one a node may stay: one that serves first.

    A manager that replaced pods side by side may leave two on a node (R14).
    """
    wanted = daemonset.manifest, daemonset.restart

    def order(place: Place) -> tuple[bool, bool, bool, Place]:
        state = pods[place]
        return not state.available, not state.healthy, state.outdated(*wanted), place

    seen, found = set[str](), dict(pods)
    for place in sorted((place for place in pods if pods[place].retained), key=order):
        if place[0] in seen:
            found[place] = msgspec.structs.replace(pods[place], retained=False)
        seen.add(place[0])
    return found


def across_nodes(request: PlacementRequest) -> bool:
    """Whether pods on other nodes affect a node's verdict."""
    placement = request.manifest.placement
    return bool(placement.spread or placement.anti_affinity or placement.pod_affinity)
