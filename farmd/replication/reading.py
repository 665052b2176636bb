"""What one RC's decision is made from: its record, its pods, and the scheduler's answers (R15).

A converged RC costs no request and no question to the scheduler. Whether nodes may keep their pods is
asked only where that can lead to something, and for a dynamic RC once for each change of its nodes' labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from farmd.pods.state import Place, PodState, observe
from farmd.replication import healing, transfer
from farmd.replication.healing import Need
from farmd.replication.model import Offer, Snapshot
from scheduler.feasibility import cramped
from scheduler.model import FleetView, NodeView, Request
from store.entry import Stored
from store.labels import pod_labels
from store.locks import Holder
from store.manifests import asked
from store.rcs import ReplicationController
from store.selectors import parse
from store.work import Work

if TYPE_CHECKING:
    from farmd.replication.kind import Tools


@dataclass(frozen=True, slots=True)
class Reading:
    """A snapshot, and what its plan is carried out with: the view that places were chosen from, if any."""

    stored: Stored[ReplicationController]
    snapshot: Snapshot
    work: Stored[Work] | None
    view: FleetView | None = None


class Reader:
    """Reads for one RC under one claim. ``wake`` is called when a turn to move a pod may have come."""

    __slots__ = ("_id", "_judged", "_leaving", "_tools", "_wake")

    def __init__(self, item: str, tools: Tools, wake: Callable[[], None]) -> None:
        self._id = item
        self._tools = tools
        self._wake = wake
        self._judged: Any = None
        self._leaving: frozenset[Place] = frozenset()

    async def read(self, stored: Stored[ReplicationController]) -> Reading:
        """The RC and its world, with places for what it needs most."""
        tools, rc = self._tools, stored.record
        work = tools.caches.work.get(tools.keys.work("rcs", self._id))
        mono = tools.clock.mono()
        pods = {
            place: observe(tools.world, place, pod, rc.min_healthy_time, mono)
            for place, pod in tools.world.pods(self._id).items()
        }
        known = work.record if work is not None else Work()
        frozen = tools.guard.frozen()
        snapshot = Snapshot(
            rc,
            pods,
            frozen=frozen,
            commanded=frozen is not None and 0 < tools.guard.frozen_index() < stored.index,
            now=tools.clock.now(),
            transfer=known.transfer,
            not_before=known.transfer_not_before,
            failed=known.transfer_failed,
            taken=self._taken(known),
            roomless=await self._roomless(rc, known),
            stop_after=0.0 if rc.deleting else await self._stop_after(pods),
            running=tools.world.processes.told(self._id) if rc.deleting and not pods else "",
        )
        snapshot = await self._judged_snapshot(stored, snapshot)
        need = healing.need(snapshot)
        if need is not None:
            snapshot = await self._prepared(snapshot, need)
        snapshot = await self._with_cramped(snapshot)
        # Nothing is awaited between that and the view: room that others take meanwhile would be missed.
        if need is not None:
            view = tools.world.fleet()
            return Reading(stored, await self._with_offer(snapshot, need, view), work, view)
        if transfer.advance(snapshot) is not None:
            snapshot = await self._looked_at_lock(snapshot)
        return Reading(stored, snapshot, work)

    async def request(self, rc: ReplicationController) -> Request:
        """What the scheduler is asked about this RC.

        Raises:
            NotFound: its manifest is gone.
        """
        manifest = await self._tools.manifests.of(rc)
        return Request(
            manifest=manifest,
            selector=parse(rc.node_selector),
            owner=self._id,
            labels=pod_labels(rc, manifest),
            replicas_per_node=rc.replicas_per_node,
        )

    def _taken(self, work: Work) -> str:
        """Who has the place that a move reserved, if not this RC."""
        if work.transfer is None:
            return ""
        (node, instance), view = work.transfer.new, self._tools.world.fleet()
        here = view[node].pods.get(instance) if node in view else None
        intent = self._tools.world.intent(work.transfer.new)
        holders = [here.owner if here else "", intent.record.owner if intent else ""]
        return next((holder for holder in holders if holder not in ("", self._id)), "")

    async def _roomless(self, rc: ReplicationController, work: Work) -> bool:
        """Whether the room that the move under way has reserved is gone, or not what its pod asks for now.

        A pod that is placed takes its own amounts: placing it on anything else could go over capacity (R17).
        """
        if work.transfer is None or work.transfer.phase == "placed" or rc.deleting:
            return False
        wanted = asked(await self._tools.manifests.get(rc.manifest))
        node = self._tools.world.fleet().get(work.transfer.new_node)
        return node is not None and node.reserved.instances.get(work.transfer.new_instance, {}) != wanted

    async def _stop_after(self, pods: Mapping[Place, PodState]) -> float:
        """How long an agent without contact lets the pods of lost nodes run at most (R27); 0: for ever."""
        shas = sorted({state.pod.record.manifest for state in pods.values() if state.lost is not None})
        return max([(await self._tools.manifests.get(sha)).stop_after for sha in shas], default=0.0)

    # -- the scheduler's judgement of nodes ------------------------------------------------------
    async def _judged_snapshot(self, stored: Stored[ReplicationController], snapshot: Snapshot) -> Snapshot:
        pods, rc = snapshot.pods, snapshot.rc
        if not pods:
            return snapshot
        if rc.strategy == "dynamic":
            view = self._tools.world.fleet()
            nodes = tuple((place, _standing(view.get(place[0]))) for place in pods)
            if self._judged != (stored.index, nodes) or self._asks(snapshot):
                await self._judge(snapshot)
                self._judged = (stored.index, nodes)
        elif self._asks(snapshot):
            await self._judge(snapshot)
        else:
            self._leaving = frozenset()
        if not self._leaving:
            return snapshot
        judged = {
            place: msgspec.structs.replace(state, retained=place not in self._leaving)
            for place, state in pods.items()
        }
        return dataclasses.replace(snapshot, pods=judged)

    def _asks(self, snapshot: Snapshot) -> bool:
        """Whether it matters now which nodes may keep their pods: for removals, repairs, moves and drains."""
        if snapshot.transfer is not None or len(snapshot.pods) > snapshot.rc.replicas_desired:
            return True
        return any(
            state.draining
            or state.intent is None
            or state.intent.record.manifest != state.pod.record.manifest
            for state in snapshot.pods.values()
        )

    async def _judge(self, snapshot: Snapshot) -> None:
        request = await self.request(snapshot.rc)
        among = msgspec.structs.replace(request, among=frozenset(node for node, _ in snapshot.pods))
        answer = await self._tools.scheduler.eligible_nodes(among, self._tools.world.fleet())
        retained = {*answer.eligible, *answer.retained}
        self._leaving = frozenset(place for place in snapshot.pods if place[0] not in retained)

    async def _with_cramped(self, snapshot: Snapshot) -> Snapshot:
        """Never over capacity, in place either (R17)."""
        outdated = snapshot.outdated
        if not outdated or snapshot.rc.disabled:
            return snapshot
        request = await self.request(snapshot.rc)
        return dataclasses.replace(snapshot, cramped=cramped(outdated, request, self._tools.world.fleet()))

    async def _prepared(self, snapshot: Snapshot, need: Need) -> Snapshot:
        """What takes time comes before the view: others place pods meanwhile, which it must show."""
        await self._tools.manifests.get(snapshot.rc.manifest)
        return await self._looked_at_lock(snapshot) if need.purpose == "transfer" else snapshot

    # -- places ------------------------------------------------------------------------------------
    async def _with_offer(self, snapshot: Snapshot, need: Need, view: FleetView) -> Snapshot:
        if need.purpose != "additions":
            # Before anything moves the evidence is looked at, not only once a second (R19).
            self._tools.guard.look()
            if (frozen := self._tools.guard.frozen()) is not None:
                return dataclasses.replace(snapshot, frozen=frozen, commanded=False)
        if need.purpose == "transfer":
            if not snapshot.locked and not self._tools.moves.enter(self._id, self._wake):
                snapshot = dataclasses.replace(snapshot, crowded=True)
            if snapshot.locked or snapshot.crowded:
                return snapshot
        offer = await self._offer(snapshot.rc, need, view)
        if offer.missing and (left := self._tools.world.leftovers(self._id)):
            offer = dataclasses.replace(offer, why=f"{_occupied(left)}; {offer.why}")
        return dataclasses.replace(snapshot, offer=offer)

    async def _looked_at_lock(self, snapshot: Snapshot) -> Snapshot:
        """Moves and rollouts exclude each other by the RC's mutation lock."""
        entry = await self._tools.client.read(self._tools.keys.mutation_lock("rcs", self._id))
        if entry is None:
            return snapshot
        holder = Holder.parse(entry.value)
        return dataclasses.replace(snapshot, locked=f"{holder.kind}/{holder.id}")

    async def _offer(self, rc: ReplicationController, need: Need, view: FleetView) -> Offer:
        request = await self.request(rc)
        if need.places:
            left = {node for node, _ in need.places}
            elsewhere = frozenset(view.keys() - left) if rc.replicas_per_node > 1 else None
            request = msgspec.structs.replace(request, leaving=frozenset(need.places), among=elsewhere)
        found = await self._tools.scheduler.allocate_nodes(request, need.count, view)
        return Offer(
            found.assignments,
            found.missing,
            found.why,
            need.purpose,
            contended="contended" in found.refusals,
        )


def _occupied(leftovers: Sequence[Place]) -> str:
    """What keeps the RC from its own places. Nobody knows whether such a pod should go or its record was
    lost, so a person decides."""
    node, instance = leftovers[0]
    more = f" and {len(leftovers) - 1} more" if len(leftovers) > 1 else ""
    return (
        f"{node}/{instance}{more}: an intent of its own is left there without a pod's record; farmctl doctor"
        f" --fix intent/{node}/{instance} stops it and makes the place free"
    )


def _standing(node: NodeView | None) -> object:
    """What may send pods away that stand on a node: a judgement holds while this stays as it is."""
    return None if node is None else (node.labels, node.presence, node.facts_known, node.drain)
