"""Reads the input of one daemon set's decision: its record, its pods, the scheduler's verdicts (R15).

A converged daemon set costs no request to the store or the scheduler until a node changes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from farmd.daemonset.contention import Contention, Rivals
from farmd.daemonset.eligibility import Verdicts, across_nodes, one_a_node
from farmd.daemonset.model import Need, Snapshot
from farmd.pods.state import PodState
from farmd.work.owner import ReplicaKind, ReplicaReader
from scheduler.feasibility import cramped
from scheduler.model import FleetView, PlacementRequest
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.manifests import asked as amounts


@dataclass(frozen=True, slots=True)
class Facts:
    """A snapshot, and what its plan is carried out with; ``view`` is what the places were chosen from.

    ``request`` is the request to the scheduler; None: the daemon set wants no pods.
    """

    stored: Stored[DaemonSet]
    snapshot: Snapshot
    view: FleetView
    request: PlacementRequest | None = None


class Reader(ReplicaReader[Facts]):
    """Reads for one daemon set under one claim."""

    __slots__ = ("_contention", "_verdicts", "settled")

    def __init__(self, kind: ReplicaKind, item: str, rivals: Rivals) -> None:
        super().__init__(kind, item)
        self._verdicts = Verdicts()
        self._contention = Contention(rivals, self.context.scheduler)
        stored = kind.tree.get(self.context.keys.record(kind.name, item))
        # ModifyIndex of the record that a plan took in as a whole. A record that is older than the claim
        # counts as taken in: nobody edited it just now.
        self.settled = stored.index if stored is not None else 0

    async def read(self, stored: Stored[DaemonSet]) -> Facts:
        """The daemon set and its fleet; facts that are needed only sometimes are left to ``answer``.

        Raises:
            NotFound: its manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        context, daemonset = self.context, stored.record
        request = await self.request(daemonset) if daemonset.wants_pods else None
        # Nothing is awaited between the view and the question to the scheduler: a change that the view lacks
        # is asked about later.
        view = context.fleet.view()
        snapshot = Snapshot(
            daemonset=daemonset,
            pods={},
            nodes=len(view),
            frozen=self.guard.frozen(),
            commanded=self.guard.commanded(stored.index),
            edited=stored.index != self.settled,
            now=context.clock.now(),
            unread=frozenset({"room", "places"}),
        )
        if request is None:
            return self._unwanted(stored, snapshot, view)
        snapshot = await self._judged(stored, snapshot, request, view)
        pods = {place: self._judgement(place[0], state) for place, state in self.pods(daemonset).items()}
        if daemonset.numbered:
            pods = one_a_node(daemonset, pods)
        vacant = self._verdicts.eligible() - {node for node, _ in pods}
        snapshot = dataclasses.replace(snapshot, pods=pods, vacant=tuple(sorted(vacant)))
        return Facts(stored, snapshot, view, request)

    def _unwanted(self, stored: Stored[DaemonSet], snapshot: Snapshot, view: FleetView) -> Facts:
        """The reading of a daemon set that is disabled or being deleted, for which no verdict matters."""
        # When it wants pods again its record has changed, and all nodes are asked about.
        self.context.fleet.interests.forget(self.item)
        found, running = self.pods(stored.record), self.running(stored.record)
        pods = {place: msgspec.structs.replace(state, draining="") for place, state in found.items()}
        return Facts(stored, dataclasses.replace(snapshot, pods=pods, running=running), view)

    async def answer(self, reading: Facts, need: Need) -> Facts:
        """Ask the scheduler for places for so many pods, or which outdated pods have room (R17)."""
        snapshot, request = reading.snapshot, reading.request
        assert request is not None
        snapshot = dataclasses.replace(snapshot, unread=snapshot.unread - {need.fact})
        if need.fact == "room":
            tight = cramped(snapshot.outdated, request, reading.view)
            return dataclasses.replace(reading, snapshot=dataclasses.replace(snapshot, cramped=tight))
        vacant = msgspec.structs.replace(request, among=frozenset(snapshot.vacant))
        found = await self.context.scheduler.allocate_nodes(vacant, need.count, reading.view)
        return dataclasses.replace(reading, snapshot=dataclasses.replace(snapshot, offer=found.assignments))

    async def _judged(
        self, stored: Stored[DaemonSet], snapshot: Snapshot, request: PlacementRequest, view: FleetView
    ) -> Snapshot:
        context, manifest = self.context, request.manifest
        changed = context.fleet.interests.changed(
            self.item, manifest.id, resources=bool(amounts(manifest)), pods=across_nodes(request)
        )
        asked = await self._verdicts.refresh(context.scheduler, request, view, changed, stored.index)
        contention = await self._contention.with_elders(stored, request, view, self.request, again=asked)
        return dataclasses.replace(snapshot, refused=self._verdicts.refused(), contention=contention)

    def _judgement(self, node: str, state: PodState) -> PodState:
        retained = self._verdicts.keeps(node)
        draining = "gentle" if not retained and self._verdicts.draining(node) else ""
        return msgspec.structs.replace(state, retained=retained, draining=draining)
