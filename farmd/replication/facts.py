"""The facts of one replication controller: its snapshot, its moves, and how they are read (R15)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec

from farmd.cache.caches import Caches
from farmd.pods.state import PodState, sick_since
from farmd.runtime.wake import Wake
from farmd.work.owned import ReplicaPlan, ReplicaSnapshot
from farmd.work.owner import ReplicaKind, ReplicaReader
from scheduler.feasibility import cramped
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest
from store.entry import Stored
from store.families import owns_pods
from store.features import ONE_SHOT
from store.keys import Keys
from store.locks import RCNodeTransferLocker
from store.manifests import asked
from store.pods import Place
from store.rcs import ReplicationController
from store.rollouts import KIND as ROLLOUTS
from store.work import Transfer, Work

# The snapshot and the plan of a replication controller.

Cause = Literal["ineligible", "draining", "unhealthy"]
Purpose = Literal["additions", "moves", "transfer"]


Fact = Literal["retained", "lock", "room", "places"]
"""Which nodes may keep their pods; who holds the mutation lock; whether outdated pods have room; places."""


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that a decision needs; for places also how many, and which pods move there."""

    purpose: Purpose = "additions"
    count: int = 0
    places: tuple[Place, ...] = ()
    cause: Cause = "ineligible"
    fact: Fact = "places"


@dataclass(frozen=True, slots=True)
class Offer:
    """Places from the scheduler; ``why`` says why there are not enough.

    ``contended``: places are missing only until other workers of this process finish their changes.
    """

    assignments: tuple[Assignment, ...] = ()
    missing: int = 0
    why: str = ""
    purpose: Purpose = "additions"
    contended: bool = False


@dataclass(frozen=True, kw_only=True)
class Snapshot(ReplicaSnapshot):
    """One RC and its fleet at one moment.

    ``transfer`` is the move under way; ``not_before`` is when the next may start after one that ``failed``
    for that cause; ``locked`` names the holder of the mutation lock; ``crowded``: as many moves as allowed
    are under way in the fleet; ``taken`` is another owner that has the reserved place of the move;
    ``roomless``: its reserved room is not what the pod asks for. Times are seconds since the epoch;
    ``stop_after`` is the manifest's. ``judged``: ``retained`` is known of these very pods and nodes.
    """

    rc: ReplicationController
    offer: Offer = Offer()
    transfer: Transfer | None = None
    not_before: float = 0.0
    failed: str = ""
    locked: str = ""
    crowded: bool = False
    taken: str = ""
    roomless: bool = False
    stop_after: float = 0.0
    judged: bool = True

    @property
    def waits_for_room(self) -> bool:
        """Whether places are missing, or outdated pods have no room."""
        return bool(self.offer.missing or self.cramped)

    @cached_property
    def unwell(self) -> dict[Place, PodState]:
        """The pods that a decision looks at one by one; about the others nothing need be done."""
        return {place: state for place, state in self.pods.items() if not state.well(self.rc)}

    @cached_property
    def completed(self) -> tuple[Place, ...]:
        """Pods that ended well for good on nodes that they would have to leave: they never run again."""
        return tuple(
            sorted(
                place
                for place, state in self.unwell.items()
                if (state.lost is not None or state.draining) and state.completed
            )
        )

    @property
    def unmarked(self) -> bool:
        """Whether a pod ended well for good, and older farms may own the RC and run it again (R11)."""
        return ONE_SHOT not in self.rc.needs and any(
            state.over or state.completed for state in self.pods.values()
        )

    @cached_property
    def sick(self) -> dict[Place, float]:
        """Since when (seconds since the epoch) pods are known not to serve."""
        found = ((place, sick_since(state)) for place, state in self.unwell.items())
        return {place: since for place, since in found if since is not None}

    @cached_property
    def outdated(self) -> list[Place]:
        """Pods that run another manifest than they should, or must be restarted."""
        rc = self.rc
        found = [
            (place, state) for place, state in self.unwell.items() if state.outdated(rc.manifest, rc.restart)
        ]
        if rc.managed_by.startswith(f"{ROLLOUTS}/"):  # versions change by the rollout alone (R14)
            found = [(place, state) for place, state in found if not state.outdated(rc.manifest)]
        return [place for place, _ in found]


@dataclass(frozen=True, slots=True)
class MoveStep:
    """The next step of a move from ``old`` to ``new``; ``rollback`` is a failure, ``cancel`` is not."""

    action: Literal["start", "place", "finish", "rollback", "cancel"]
    old: Place
    new: Place
    cause: Cause
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ReplicaPlan):
    """The changes to make now: ``moves`` are pods that are replaced elsewhere in one transaction, ``step``
    is the next step of a move that makes before it breaks, ``completions`` are pods that ended well for good.
    ``marks``: the record says from now on that older farms may not own it.
    """

    moves: tuple[tuple[Place, Assignment], ...] = ()
    step: MoveStep | None = None
    completions: tuple[Place, ...] = ()
    marks: bool = False

    @property
    def arriving(self) -> tuple[Place, ...]:
        """The places of new pods; the start of a move chooses one."""
        if self.step is not None:
            return (self.step.new,) if self.step.action in ("start", "place") else ()
        goals = [*self.additions, *(goal for _, goal in self.moves)]
        return tuple((goal.node, goal.instance) for goal in goals)

    @property
    def changes_pods(self) -> bool:
        """Whether pods, the note on a move, or what the record needs change."""
        changes = self.additions or self.removals or self.repairs or self.replacements or self.moves
        changes = changes or self.completions or self.restarts
        return bool(changes) or self.marks or self.step is not None

    def counts(self) -> dict[str, int | str]:
        """The numbers of changes, for the log."""
        step = self.step.action if self.step is not None else ""
        return {**ReplicaPlan.counts(self), "moved": len(self.moves), "step": step}


# Limits how many moves are under way in the whole fleet.
#
# Moves are counted from the notes of all farms' workers, plus the moves that this farm is just starting.
# Farms that start a move at the same moment may exceed the limit by one each; the limit protects the fleet
# from load, and correctness does not need it. An item that waits owns no timer: the end of a move wakes the
# next.


class Moves:
    """The moves of all farms; at most ``limit`` at once."""

    def __init__(self, caches: Caches, keys: Keys, limit: int) -> None:
        self._caches = caches
        self._prefix = keys.tree("work")
        self._limit = limit
        self._under_way: set[str] = set()
        self._starting: set[str] = set()
        self._waiting: dict[str, Callable[[], None]] = {}
        caches.work.subscribe(self._changed)

    def __len__(self) -> int:
        return len(self._under_way | self._starting)

    def enter(self, item: str, wake: Callable[[], None]) -> bool:
        """Whether the item may start a move now; if not, ``wake`` is called when its turn may have come."""
        if item not in self._starting and len(self) >= self._limit:
            self._waiting.setdefault(item, wake)
            return False
        self._waiting.pop(item, None)
        self._starting.add(item)
        return True

    def leave(self, item: str) -> None:
        """Called at the end of the item's cycle; a started move is known by its note."""
        self._starting.discard(item)
        self._call()

    def forget(self, item: str) -> None:
        """Called at the end of the item's worker."""
        self._waiting.pop(item, None)
        self.leave(item)

    def _changed(self, changed: set[str]) -> None:
        for key in changed:
            kind, _, item = key[len(self._prefix) :].partition("/")
            if owns_pods(kind):
                stored = self._caches.work.get(key)
                moving = stored is not None and stored.record.transfer is not None
                (self._under_way.add if moving else self._under_way.discard)(item)
        self._call()

    def _call(self) -> None:
        if not self._waiting:
            return
        for item in list(self._waiting)[: max(0, self._limit - len(self))]:
            self._waiting.pop(item)()


# Reads the input of one RC's decision: its record, its pods, the scheduler's answers (R15).
#
# A converged RC costs no request to the store or the scheduler. Whether nodes may keep their pods is asked
# only where the answer matters, and for a dynamic RC once for each change of its nodes.

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
        f"{node}/{instance}{more}: it has an intent but no pod record; farmctl doctor"
        f" --fix intent/{node}/{instance} stops it and frees the place"
    )


def _standing(node: NodeView | None) -> object:
    """What a judgement on a node depends on."""
    return None if node is None else (node.labels, node.presence, node.facts_known, node.drain)
