"""What one daemon set's decision is made from: its record, its pods, and the scheduler's verdicts (R15).

A converged daemon set costs no request and no question to the scheduler until a node changes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from farmd.daemonset import eligibility
from farmd.daemonset.contention import Contention, Rivals
from farmd.daemonset.eligibility import Verdicts, across_nodes
from farmd.daemonset.model import Need, Snapshot
from farmd.failsafe.guard import FailsafeGuard
from farmd.pods.state import Place, PodState, observe
from farmd.work.context import Context
from scheduler.feasibility import cramped
from scheduler.model import FleetView, Request
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.pods import Pod


@dataclass(frozen=True, slots=True)
class Reading:
    """A snapshot, and what its plan is carried out with: the view that places were chosen from.

    ``request`` is what the scheduler is asked about the daemon set; None: it wants no pods.
    """

    stored: Stored[DaemonSet]
    snapshot: Snapshot
    view: FleetView
    request: Request | None = None


class Reader:
    """Reads for one daemon set under one claim."""

    __slots__ = ("_contention", "_context", "_guard", "_id", "_verdicts")

    def __init__(self, item: str, context: Context, guard: FailsafeGuard, rivals: Rivals) -> None:
        self._id = item
        self._context = context
        self._guard = guard
        self._verdicts = Verdicts()
        self._contention = Contention(rivals, context.scheduler)

    async def read(self, stored: Stored[DaemonSet]) -> Reading:
        """The daemon set and its world; what only sometimes matters is left for ``answer``.

        Raises:
            NotFound: its manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        context, daemonset = self._context, stored.record
        request = await self.request(daemonset) if daemonset.wants_pods else None
        # From here on to the question nothing is awaited: a change that the view lacks is asked about later.
        view, frozen = context.fleet.view(), self._guard.frozen()
        snapshot = Snapshot(
            daemonset=daemonset,
            pods={},
            nodes=len(view),
            frozen=frozen,
            commanded=frozen is not None and 0 < self._guard.frozen_index() < stored.index,
            now=context.clock.now(),
            unread=frozenset({"room", "places"}),
        )
        if request is None:
            return self._unwanted(stored, snapshot, view)
        snapshot = await self._judged(stored, snapshot, request, view)
        placed, wait = context.fleet.pods(self._id), daemonset.min_healthy_time
        pods = {place: self._state(place, pod, wait) for place, pod in placed.items()}
        vacant = self._verdicts.eligible() - {node for node, _ in pods}
        snapshot = dataclasses.replace(snapshot, pods=pods, vacant=tuple(sorted(vacant)))
        return Reading(stored, snapshot, view, request)

    def _unwanted(self, stored: Stored[DaemonSet], snapshot: Snapshot, view: FleetView) -> Reading:
        """Disabled or being deleted: no verdict matters."""
        fleet, daemonset = self._context.fleet, stored.record
        # Once it wants pods again its record is another, and all nodes are asked.
        self._context.fleet.interests.forget(self._id)
        mono, wait = self._context.clock.mono(), daemonset.min_healthy_time
        observed = {
            place: observe(fleet, place, pod, wait, mono) for place, pod in fleet.pods(self._id).items()
        }
        pods = {place: msgspec.structs.replace(state, draining="") for place, state in observed.items()}
        running = fleet.processes.told(self._id) if daemonset.deleting and not pods else ""
        return Reading(stored, dataclasses.replace(snapshot, pods=pods, running=running), view)

    async def answer(self, reading: Reading, need: Need) -> Reading:
        """What the scheduler says: places for so many pods, or which outdated ones have room (R17)."""
        snapshot, request = reading.snapshot, reading.request
        assert request is not None
        snapshot = dataclasses.replace(snapshot, unread=snapshot.unread - {need.fact})
        if need.fact == "room":
            tight = cramped(snapshot.outdated, request, reading.view)
            return dataclasses.replace(reading, snapshot=dataclasses.replace(snapshot, cramped=tight))
        vacant = msgspec.structs.replace(request, among=frozenset(snapshot.vacant))
        found = await self._context.scheduler.allocate_nodes(vacant, need.count, reading.view)
        return dataclasses.replace(reading, snapshot=dataclasses.replace(snapshot, offer=found.assignments))

    async def request(self, daemonset: DaemonSet) -> Request:
        """What the scheduler is asked about a daemon set.

        Raises:
            NotFound: its manifest is gone.
        """
        return eligibility.request(daemonset, await self._context.manifests.of(daemonset))

    async def _judged(
        self, stored: Stored[DaemonSet], snapshot: Snapshot, request: Request, view: FleetView
    ) -> Snapshot:
        context, manifest = self._context, request.manifest
        changed = context.fleet.interests.changed(
            self._id, manifest.id, resources=bool(manifest.resources), pods=across_nodes(request)
        )
        asked = await self._verdicts.refresh(context.scheduler, request, view, changed, stored.index)
        contention = await self._contention.with_elders(stored, request, view, self.request, again=asked)
        return dataclasses.replace(snapshot, refused=self._verdicts.refused(), contention=contention)

    def _state(self, place: Place, pod: Stored[Pod], min_healthy_time: float) -> PodState:
        context, node = self._context, place[0]
        state = observe(context.fleet, place, pod, min_healthy_time, context.clock.mono())
        retained = self._verdicts.keeps(node)
        draining = "gentle" if not retained and self._verdicts.draining(node) else ""
        return msgspec.structs.replace(state, retained=retained, draining=draining)
