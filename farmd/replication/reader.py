"""Reads the input of one RC's decision: its record, its pods, the scheduler's answers (R15).

A converged RC costs no request to the store or the scheduler. Whether nodes may keep their pods is asked only
where the answer matters, and for a dynamic RC once for each change of its nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from farmd.pods.state import PodState
from farmd.replication.model import Fact, Need, Offer, Snapshot
from farmd.replication.moves import Moves
from farmd.runtime.wake import Wake
from farmd.work.owner import ReplicaKind, ReplicaReader
from scheduler.feasibility import cramped
from scheduler.model import FleetView, NodeView, PlacementRequest
from store.entry import Stored
from store.locks import RCNodeTransferLocker
from store.manifests import asked
from store.pods import Place
from store.rcs import ReplicationController
from store.work import Work

UNREAD: frozenset[Fact] = frozenset({"retained", "lock", "room", "places"})


@dataclass(frozen=True, slots=True)
class Facts:
    """A snapshot, and what its plan is carried out with; ``view`` is what places were chosen from, if any."""

    stored: Stored[ReplicationController]
    snapshot: Snapshot
    work: Stored[Work] | None
    view: FleetView | None = None


class Reader(ReplicaReader[Facts]):
    """Reads for one RC under one claim. ``wake`` is set when its turn to move a pod may have come."""

    __slots__ = ("_judged", "_leaving", "_moves", "_wake")

    def __init__(self, kind: ReplicaKind, item: str, moves: Moves, wake: Wake) -> None:
        super().__init__(kind, item)
        self._moves = moves
        self._wake = wake
        self._judged: Any = None
        self._leaving: Collection[Place] = ()

    async def read(self, stored: Stored[ReplicationController]) -> Facts:
        """The RC and its fleet; facts that are needed only sometimes are left to ``answer``."""
        context, rc = self.context, stored.record
        work = context.caches.work.get(context.keys.work("rcs", self.item))
        pods, known = self.pods(rc), work.record if work is not None else Work()
        snapshot = Snapshot(
            rc=rc,
            pods=pods,
            frozen=self.guard.frozen(),
            commanded=self.guard.commanded(stored.index),
            now=context.clock.now(),
            transfer=known.transfer,
            not_before=known.transfer_not_before,
            failed=known.transfer_failed,
            taken=self._taken(known),
            roomless=await self._roomless(rc, known),
            stop_after=0.0 if rc.deleting else await self._stop_after(pods),
            running=self.running(rc),
            unread=UNREAD,
        )
        return Facts(stored, self._recalled(stored, snapshot), work)

    def _recalled(self, stored: Stored[ReplicationController], snapshot: Snapshot) -> Snapshot:
        """Apply a dynamic RC's last judgement while its record, pods and nodes are the same."""
        judged = snapshot.rc.strategy == "dynamic" and self._judged == self._standing(stored.index, snapshot)
        if not judged:
            self._leaving = ()
        return self._retained(dataclasses.replace(snapshot, judged=judged))

    def _standing(self, index: int, snapshot: Snapshot) -> object:
        """What a judgement depends on; it holds while this is the same."""
        view = self.context.fleet.view()
        return index, tuple((place, _standing(view.get(place[0]))) for place in snapshot.pods)

    def _retained(self, snapshot: Snapshot) -> Snapshot:
        if not self._leaving:
            return snapshot
        pods = {
            place: msgspec.structs.replace(state, retained=place not in self._leaving)
            for place, state in snapshot.pods.items()
        }
        return dataclasses.replace(snapshot, pods=pods)

    async def answer(self, reading: Facts, need: Need) -> Facts:
        """The reading with the fact that was asked for.

        Raises:
            NotFound: the RC's manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        context, snapshot = self.context, reading.snapshot
        snapshot = dataclasses.replace(snapshot, unread=snapshot.unread - {need.fact})
        view = reading.view
        if need.fact == "retained":
            snapshot = await self._judge(reading.stored.index, snapshot)
        elif need.fact == "lock":
            snapshot = await self._looked_at_lock(snapshot)
        elif need.fact == "room":
            # A replacement in place must not exceed the capacity either (R17).
            request = await self.request(snapshot.rc)
            tight = cramped(snapshot.outdated, request, context.fleet.view())
            snapshot = dataclasses.replace(snapshot, cramped=tight)
        else:
            request, view = await self.request(snapshot.rc), context.fleet.view()
            snapshot = await self._with_offer(snapshot, need, request, view)
        return dataclasses.replace(reading, snapshot=snapshot, view=view)

    def _taken(self, work: Work) -> str:
        """The other owner that has the place which a move reserved; empty: none."""
        if work.transfer is None:
            return ""
        (node, instance), view = work.transfer.new, self.context.fleet.view()
        here = view[node].pods.get(instance) if node in view else None
        intent = self.context.fleet.intent(work.transfer.new)
        holders = [here.owner if here else "", intent.record.owner if intent else ""]
        return next((holder for holder in holders if holder not in ("", self.item)), "")

    async def _roomless(self, rc: ReplicationController, work: Work) -> bool:
        """Whether the room that the move reserved is gone, or not what its pod asks for now.

        A placed pod takes its own amounts; without matching room it could exceed the capacity (R17).
        """
        if work.transfer is None or work.transfer.phase == "placed" or rc.deleting:
            return False
        wanted = asked(await self.context.manifests.get(rc.manifest))
        node = self.context.fleet.view().get(work.transfer.new_node)
        return node is not None and node.reserved.instances.get(work.transfer.new_instance, {}) != wanted

    async def _stop_after(self, pods: Mapping[Place, PodState]) -> float:
        """The longest time for which an agent without contact runs the pods of lost nodes (R27); 0: for
        ever.
        """
        shas = sorted({state.pod.record.manifest for state in pods.values() if state.lost is not None})
        return max([(await self.context.manifests.get(sha)).stop_after for sha in shas], default=0.0)

    # -- the scheduler's answers -----------------------------------------------------------------
    async def _judge(self, index: int, snapshot: Snapshot) -> Snapshot:
        """Ask which nodes may keep their pods."""
        request = await self.request(snapshot.rc)
        among = msgspec.structs.replace(request, among=frozenset(node for node, _ in snapshot.pods))
        standing = self._standing(index, snapshot)
        answer = await self.context.scheduler.eligible_nodes(among, self.context.fleet.view())
        kept = {*answer.eligible, *answer.retained}
        self._leaving = frozenset(place for place in snapshot.pods if place[0] not in kept)
        self._judged = standing
        return self._retained(dataclasses.replace(snapshot, judged=True))

    async def _with_offer(
        self, snapshot: Snapshot, need: Need, request: PlacementRequest, view: FleetView
    ) -> Snapshot:
        if need.purpose != "additions":
            # The evidence is checked right before a move, not only once a second (R19).
            self.guard.look()
            if (frozen := self.guard.frozen()) is not None:
                return dataclasses.replace(snapshot, frozen=frozen, commanded=False)
        if need.purpose == "transfer":
            if not snapshot.locked and not self._moves.enter(self.item, self._wake.set):
                snapshot = dataclasses.replace(snapshot, crowded=True)
            if snapshot.locked or snapshot.crowded:
                return snapshot
        offer = await self._offer(snapshot.rc, need, request, view)
        if offer.missing and (left := self.context.fleet.leftovers(self.item)):
            offer = dataclasses.replace(offer, why=f"{_occupied(left)}; {offer.why}")
        return dataclasses.replace(snapshot, offer=offer)

    async def _looked_at_lock(self, snapshot: Snapshot) -> Snapshot:
        """Read the RC's mutation lock, by which moves and managers exclude each other."""
        holder = await RCNodeTransferLocker(self.context.client, self.context.keys).holder(self.item)
        if holder is None:
            return snapshot
        return dataclasses.replace(snapshot, locked=f"{holder.kind}/{holder.id}")

    async def _offer(
        self, rc: ReplicationController, need: Need, request: PlacementRequest, view: FleetView
    ) -> Offer:
        if need.places:
            left = {node for node, _ in need.places}
            elsewhere = frozenset(view.keys() - left) if rc.replicas_per_node > 1 else None
            request = msgspec.structs.replace(request, leaving=frozenset(need.places), among=elsewhere)
        found = await self.context.scheduler.allocate_nodes(request, need.count, view)
        return Offer(
            found.assignments,
            found.missing,
            found.why,
            need.purpose,
            contended="contended" in found.refusals,
        )


def _occupied(leftovers: Sequence[Place]) -> str:
    """Why the RC cannot use its own places. Either such a pod should go or its record was lost; a person
    decides which.
    """
    node, instance = leftovers[0]
    more = f" and {len(leftovers) - 1} more" if len(leftovers) > 1 else ""
    return (
        f"{node}/{instance}{more}: an intent of its own is left there without a pod's record; farmctl doctor"
        f" --fix intent/{node}/{instance} stops it and makes the place free"
    )


def _standing(node: NodeView | None) -> object:
    """What a judgement on a node depends on."""
    return None if node is None else (node.labels, node.presence, node.facts_known, node.drain)
