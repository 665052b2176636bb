"""Finds daemon sets that claim the same nodes: the oldest gets them, and the younger ones wait.

Only daemon sets of one pod id can contend. A change of a record wakes those that share its pod id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from farmd.work.context import Context
from scheduler.errors import PlacementInvalid
from scheduler.model import FleetView, PlacementRequest
from scheduler.protocol import Scheduler
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.errors import NotFound, RecordInvalid
from store.families import DAEMONSETS
from store.words import count_of

Ask = Callable[[DaemonSet], Awaitable[PlacementRequest]]


class Rivals:
    """The daemon sets of the fleet, by pod id."""

    def __init__(self, context: Context) -> None:
        self._daemonsets = context.caches.tree(DAEMONSETS)
        self._context = context
        self._pod_ids: dict[str, str] = {}
        self._daemonsets.subscribe(self._changed)
        self._changed(set(self._daemonsets.entries))

    def elders(self, stored: Stored[DaemonSet]) -> list[Stored[DaemonSet]]:
        """Enabled daemon sets of the same pod id that are older, the oldest first."""
        same = [rival for rival, pod_id in self._pod_ids.items() if pod_id == stored.record.pod_id]
        rivals = [self._daemonsets.get(self._context.keys.record("daemonsets", rival)) for rival in same]
        elders = [
            rival
            for rival in rivals
            if rival is not None and rival.record.wants_pods and _age(rival) < _age(stored)
            # Numbered instances have names of their own.
            if not (rival.record.numbered or stored.record.numbered)
        ]
        return sorted(elders, key=_age)

    def _changed(self, changed: set[str]) -> None:
        concerned = set()
        for key in changed:
            item, stored = self._context.keys.last_part(key), self._daemonsets.get(key)
            pod_ids = {self._pod_ids.pop(item, "")}
            if stored is not None:
                self._pod_ids[item] = stored.record.pod_id
                pod_ids.add(stored.record.pod_id)
            concerned |= {other for other, pod_id in self._pod_ids.items() if pod_id and pod_id in pod_ids}
        self._context.fleet.wake(concerned)


class Contention:
    """The contention of one daemon set with an older one; the scheduler is asked again only for a reason."""

    __slots__ = ("_key", "_rivals", "_scheduler", "_text")

    def __init__(self, rivals: Rivals, scheduler: Scheduler) -> None:
        self._rivals = rivals
        self._scheduler = scheduler
        self._text = ""
        self._key: Any = None

    async def with_elders(
        self, stored: Stored[DaemonSet], request: PlacementRequest, view: FleetView, ask: Ask, *, again: bool
    ) -> str:
        """The contention as one line for people; empty: there is none. ``again``: the scheduler's verdicts
        are new.

        Raises:
            SchedulerError: no trustworthy answer.
        """
        elders = self._rivals.elders(stored)
        key = (stored.index, tuple((elder.record.id, elder.index) for elder in elders))
        if not again and key == self._key:
            return self._text
        self._text, self._key = "", None
        for elder in elders:
            try:
                other = await ask(elder.record)
                shared = await self._shared(request, other, view)
            except (NotFound, RecordInvalid, PlacementInvalid):
                continue  # it cannot place any pod, and its own worker reports that
            if shared or _alike(request, other):
                where = (
                    f"{count_of(len(shared), 'node')}, such as {shared[0]}"
                    if shared
                    else "every node that either may get"
                )
                self._text = f"contends with daemonset {elder.record.name!r}, which is older, for {where}"
                break
        self._key = key
        return self._text

    async def _shared(self, request: PlacementRequest, other: PlacementRequest, view: FleetView) -> list[str]:
        """The nodes that both would get if the other did not exist."""
        asked = []
        for one, rival in ((request, other), (other, request)):
            alone = msgspec.structs.replace(one, replaces=frozenset({rival.owner}))
            asked.append((await self._scheduler.eligible_nodes(alone, view)).eligible)
        return sorted(set(asked[0]) & set(asked[1]))


def _alike(request: PlacementRequest, other: PlacementRequest) -> bool:
    """Whether both must claim the same nodes, even while no node exists: p2 asked for equal selectors."""
    if request.manifest.placement.constraints or other.manifest.placement.constraints:
        return False
    one, two = str(request.selector), str(other.selector)
    return one == two or not one or not two


def _age(stored: Stored[DaemonSet]) -> tuple[int, str]:
    """The order of creation, by Consul's index, which is more reliable than any clock."""
    return stored.create_index, stored.record.id
