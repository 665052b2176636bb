"""What one daemon set's decision is made from: its record, its pods, and the scheduler's verdicts (R15).

A converged daemon set costs no request and no question to the scheduler until a node changes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from farmd.daemonset import eligibility
from farmd.daemonset.eligibility import Verdicts, across_nodes, common
from farmd.daemonset.model import Snapshot
from farmd.daemonset.pace import pace
from farmd.pods.state import Place, PodState, observe
from scheduler.errors import PlacementInvalid
from scheduler.feasibility import cramped
from scheduler.model import FleetView, Request
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.errors import NotFound, RecordInvalid
from store.pods import Pod

if TYPE_CHECKING:
    from farmd.daemonset.kind import Tools


@dataclass(frozen=True, slots=True)
class Reading:
    """A snapshot, and what its plan is carried out with: the view that places were chosen from."""

    stored: Stored[DaemonSet]
    snapshot: Snapshot
    view: FleetView


class Reader:
    """Reads for one daemon set under one claim."""

    __slots__ = ("_contention", "_contention_key", "_id", "_tools", "_verdicts")

    def __init__(self, item: str, tools: Tools) -> None:
        self._id = item
        self._tools = tools
        self._verdicts = Verdicts()
        self._contention = ""
        self._contention_key: Any = None

    async def read(self, stored: Stored[DaemonSet]) -> Reading:
        """The daemon set and its world, with places for as many pods as may be added now.

        Raises:
            NotFound: its manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        tools, daemonset = self._tools, stored.record
        request = await self.request(daemonset) if daemonset.wants_pods else None
        # From here on to the question nothing is awaited: a change that the view lacks is asked about later.
        view, frozen = tools.world.fleet(), tools.guard.frozen()
        snapshot = Snapshot(
            daemonset,
            {},
            nodes=len(view),
            frozen=frozen,
            commanded=frozen is not None and 0 < tools.guard.frozen_index() < stored.index,
            now=tools.clock.now(),
        )
        if request is not None:
            snapshot = await self._judged(stored, snapshot, request, view)
        placed, wait = tools.world.pods(self._id), daemonset.min_healthy_time
        pods = {place: self._state(place, pod, wait) for place, pod in placed.items()}
        if request is None:
            # Once it wants pods again its record is another, and all nodes are asked.
            tools.watch.take(self._id)
            pods = {
                place: msgspec.structs.replace(state, retained=True, draining="")
                for place, state in pods.items()
            }
            running = tools.world.processes.told(self._id) if daemonset.deleting and not pods else ""
            return Reading(stored, dataclasses.replace(snapshot, pods=pods, running=running), view)
        vacant = self._verdicts.eligible() - {node for node, _ in pods}
        snapshot = dataclasses.replace(snapshot, pods=pods, vacant=tuple(sorted(vacant)))
        snapshot = _with_cramped(snapshot, request, view)
        return Reading(stored, await self._with_offer(snapshot, request, view), view)

    async def request(self, daemonset: DaemonSet) -> Request:
        """What the scheduler is asked about a daemon set.

        Raises:
            NotFound: its manifest is gone.
        """
        return eligibility.request(daemonset, await self._tools.manifests.of(daemonset))

    async def _judged(
        self, stored: Stored[DaemonSet], snapshot: Snapshot, request: Request, view: FleetView
    ) -> Snapshot:
        tools = self._tools
        tools.watch.follow(
            self._id,
            request.manifest.id,
            resources=bool(request.manifest.resources),
            pods=across_nodes(request),
        )
        changed = tools.watch.take(self._id)
        asked = await self._verdicts.refresh(tools.scheduler, request, view, changed, stored.index)
        contention = await self._contends(stored, request, view, asked=asked)
        return dataclasses.replace(snapshot, refused=self._verdicts.refused(), contention=contention)

    async def _contends(
        self, stored: Stored[DaemonSet], request: Request, view: FleetView, *, asked: bool
    ) -> str:
        """With which older daemon set this one claims nodes in common; asked again only for a reason."""
        elders = self._tools.watch.elders(self._id)
        key = (stored.index, tuple((elder.record.id, elder.index) for elder in elders))
        if not asked and key == self._contention_key:
            return self._contention
        self._contention, self._contention_key = "", None
        for elder in elders:
            try:
                other = await self.request(elder.record)
                count, first = await common(self._tools.scheduler, request, other, view)
            except (NotFound, RecordInvalid, PlacementInvalid):
                continue  # it cannot place a pod anywhere, and its own worker says so
            if count or _alike(request, other):
                where = f"{count} nodes, such as {first}" if count else "every node that either may get"
                self._contention = (
                    f"contends with daemonset {elder.record.name!r}, which is older, for {where}"
                )
                break
        self._contention_key = key
        return self._contention

    def _state(self, place: Place, pod: Stored[Pod], min_healthy_time: float) -> PodState:
        tools, node = self._tools, place[0]
        state = observe(tools.world, place, pod, min_healthy_time, tools.clock.mono())
        retained = self._verdicts.keeps(node)
        draining = "gentle" if not retained and self._verdicts.draining(node) else ""
        return msgspec.structs.replace(state, retained=retained, draining=draining)

    async def _with_offer(self, snapshot: Snapshot, request: Request, view: FleetView) -> Snapshot:
        count = min(len(snapshot.vacant), pace(snapshot).allowance)
        if not count or snapshot.contention:
            return snapshot
        vacant = msgspec.structs.replace(request, among=frozenset(snapshot.vacant))
        found = await self._tools.scheduler.allocate_nodes(vacant, count, view)
        return dataclasses.replace(snapshot, offer=found.assignments)


def _with_cramped(snapshot: Snapshot, request: Request, view: FleetView) -> Snapshot:
    """Never over capacity, in place either (R17)."""
    manifest = snapshot.daemonset.manifest
    outdated = [place for place, state in snapshot.pods.items() if state.outdated(manifest)]
    if not outdated:
        return snapshot
    return dataclasses.replace(snapshot, cramped=cramped(outdated, request, view))


def _alike(request: Request, other: Request) -> bool:
    """Whether both must claim the same nodes, even while there are none: p2 asked for equal selectors."""
    if request.manifest.placement.constraints or other.manifest.placement.constraints:
        return False
    one, two = str(request.selector), str(other.selector)
    return one == two or not one or not two
