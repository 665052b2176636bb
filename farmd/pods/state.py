"""The state of one pod, as every floor, gate and wait counts it (R21, R22).

It answers three questions: is the pod healthy, is it available, is it known to be down. What must never
break: a pod of unknown state is neither healthy nor down, and a pod counts as available only after it was
healthy for its owner's ``min_healthy_time`` without a break, by the monotonic clock of the farm that counts.
A farm that took over the owner a moment ago waits longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr

from store.entry import Stored
from store.named import Owner
from store.pods import Place, Pod
from store.reality import Glance, Intent, Reality, passes

if TYPE_CHECKING:
    from farmd.cache.fleet import FleetIndex

K = TypeVar("K")

STOP_MARGIN_SECONDS = 10.0


class PodState(msgspec.Struct, frozen=True, gc=False):
    """One pod, with what its node must run and does run.

    ``retained``: its node may keep it. ``unreadable``: its intent does not decode. ``lost``: since when its
    node is given up (seconds since the epoch); ``absent``: its agent is absent (R21). ``draining``: its node
    is drained; ``forced`` drains wait for no health floor. ``settles_in``: seconds until it is available if
    it stays healthy; 0 or less once they are over. ``healthy`` follows from the rest: whether it passes its
    check, with its own manifest and in a start that acted on its intent (R22).
    """

    pod: Stored[Pod]
    intent: Stored[Intent] | None
    reality: Reality | Glance | None
    retained: bool = True
    unreadable: bool = False
    lost: float | None = None
    absent: bool = False
    draining: Literal["", "gentle", "forced"] = ""
    settles_in: float = 0.0
    healthy: bool = False

    def __post_init__(self) -> None:
        # Not a property: a turn asks it of each pod several times.
        seen, intent = self.reality, self.intent
        if self.over:
            force_setattr(self, "healthy", True)
            return
        known = not self.absent and self.lost is None and intent is not None and seen is not None
        healthy = known and seen.intent >= intent.index and passes(seen, self.pod.record.manifest)  # type: ignore[union-attr]
        force_setattr(self, "healthy", healthy)

    @property
    def over(self) -> bool:
        """Whether it ended well for good, and no node has anything of it any more."""
        return self.pod.record.done and self.intent is None

    @property
    def completed(self) -> bool:
        """Whether the pod has completed successfully, as its agent reports for its present intent."""
        seen, intent = self.reality, self.intent
        known = intent is not None and seen is not None and seen.intent >= intent.index
        return known and seen.phase == "done" and passes(seen, self.pod.record.manifest)  # type: ignore[union-attr]

    @property
    def unknown(self) -> bool:
        """Whether its state is unknown, because its agent is absent and its node is not given up yet
        (R21).
        """
        return self.absent and self.lost is None

    @property
    def leaving(self) -> bool:
        """Whether its process still serves although it is to stop: its agent has not acted on its intent yet,
        or it leaves (R39).
        """
        seen = self.reality
        if seen is None or self.healthy or self.absent or self.lost is not None:
            return False
        if seen.phase == "stopping":
            return seen.leaving if isinstance(seen, Glance) else seen.leaves_until > 0
        return seen.phase == "running" and passes(seen, seen.manifest)

    @property
    def available(self) -> bool:
        """Whether it is healthy for long enough; floors and ``converged`` count available pods."""
        # What ended well cannot fail later, so no time need pass.
        return self.healthy and (self.settles_in <= 0 or self.completed)

    @property
    def down(self) -> bool:
        """Whether it is known not to serve, so that removing it costs no availability.

        A pod that is healthy but not available yet serves, and so does a pod whose agent has not acted on its
        rewritten intent yet. A missing reality is doubt, not ill health.
        """
        if self.lost is not None:
            return True
        known = not self.absent and self.reality is not None
        return known and not passes(self.reality, self.pod.record.manifest)

    def outdated(self, manifest: str, restart: int = 0) -> bool:
        """Whether it runs another manifest than it should, or must be restarted (R28)."""
        behind = self.intent is not None and self.intent.record.restart < restart
        return self.pod.record.manifest != manifest or behind

    def foreign(self, owner: str) -> bool:
        """Whether its intent is not known to be its owner's."""
        return self.unreadable or (self.intent is not None and self.intent.record.owner != owner)

    def well(self, owner: Owner) -> bool:
        """Whether the pod is healthy, may stay on its node, and matches its owner's record, so that nothing
        has to be done.
        """
        if self.over:
            return self.pod.record.manifest == owner.manifest
        if not (self.healthy and self.retained) or self.draining or self.intent is None:
            return False
        here, intent = self.pod.record.manifest, self.intent.record
        wanted = here == intent.manifest == owner.manifest and intent.restart >= owner.restart
        return wanted and intent.owner == owner.id

    def altered(self, owner: str) -> bool:
        """Whether its intent was lost or altered, and its owner may repair it."""
        if self.foreign(owner) or self.over:
            return False
        return self.intent is None or self.intent.record.manifest != self.pod.record.manifest


def sick_since(state: PodState) -> float | None:
    """Since when (seconds since the epoch) a pod is known not to serve; None: it serves, or it is unknown."""
    reality, placed = state.reality, state.pod.record.at
    if state.healthy or state.absent or state.lost is not None or reality is None:
        return None
    if state.intent is None or reality.intent < state.intent.index:
        return None  # its agent has not acted on the intent yet
    health = reality if isinstance(reality, Glance) else reality.health
    if reality.phase == "running" and health.state != "critical":
        return None
    began = health.since or reality.started
    if not began and reality.phase != "failed":
        return None  # it is down, and its agent does not say since when: between two starts, for one
    return max(began, placed)


def replaceable_at(state: PodState, on_lost: str, stop_after: float) -> float | None:
    """When (seconds since the epoch) a pod on a lost node may be replaced; None: it may not.

    It must have stopped there by then if it ever will: its agent stops it ``stop_after`` seconds after it
    lost contact (R27; 0: never).
    """
    if state.lost is None or on_lost != "replace":
        return None
    return state.lost + (stop_after + STOP_MARGIN_SECONDS if stop_after > 0 else 0.0)


def observe(
    fleet: FleetIndex, place: Place, pod: Stored[Pod], min_healthy_time: float, mono: float
) -> PodState:
    """The state of one pod, looked up by its place: the cost does not grow with the fleet."""
    return _observed(fleet, place, pod, _node(fleet, place[0]), min_healthy_time - mono)


def observed(fleet: FleetIndex, owner: str, min_healthy_time: float, mono: float) -> dict[Place, PodState]:
    """The states of all pods of an owner; each node is looked up once."""
    pods, left = fleet.pods(owner), min_healthy_time - mono
    nodes = {node: _node(fleet, node) for node in {node for node, _ in pods}}
    return {place: _observed(fleet, place, pod, nodes[place[0]], left) for place, pod in pods.items()}


_Node = tuple[float | None, bool, Literal["", "gentle", "forced"]]  # lost, absent, draining


def _node(fleet: FleetIndex, node: str) -> _Node:
    drain = fleet.drain(node)
    draining: Literal["", "gentle", "forced"] = (
        "" if drain is None else "forced" if drain.ignores_floor else "gentle"
    )
    return fleet.lost_since(node) or None, not fleet.present(node), draining


def _observed(fleet: FleetIndex, place: Place, pod: Stored[Pod], node: _Node, left: float) -> PodState:
    intent, reality = fleet.intent(place), fleet.reality(place)
    settles_in = 0.0 if reality is None else reality.seen + left
    unreadable = intent is None and fleet.unreadable(place)
    if pod.record.done and intent is None and not unreadable:
        return PodState(pod, None, None)  # what becomes of its node is nothing to it
    return PodState(pod, intent, reality, True, unreadable, *node, settles_in)


def settling(pods: Iterable[PodState]) -> float | None:
    """Seconds until the next healthy pod is available; None: all are, so that no timer is needed (R23a)."""
    waits = (state.settles_in for state in pods if state.settles_in > 0 and state.healthy)
    return min(waits, default=None)


def settled(pods: Mapping[K, PodState]) -> dict[K, PodState]:
    """The same pods, as if each had had its present health for long enough."""
    return {place: msgspec.structs.replace(state, settles_in=0.0) for place, state in pods.items()}


def waits_for_availability(min_healthy_time: float) -> str:
    """The reason in a status while only time is missing."""
    return f"waiting until all pods are healthy for {min_healthy_time:g} s without a break"


def altered(owner: str, pods: Mapping[Place, PodState]) -> tuple[Place, ...]:
    """Pods whose intent is missing or names another manifest; never an intent of another owner."""
    return tuple(sorted(place for place, state in pods.items() if state.retained and state.altered(owner)))


def cramped(places: Collection[Place]) -> str:
    """The first of the outdated pods whose nodes have no room for the new manifest, as text; or empty."""
    if not places:
        return ""
    node, instance = min(places)
    return f"{node}/{instance}: the node has no room for what the new manifest requests"


def foreign(owner: str, pods: Mapping[Place, PodState]) -> str:
    """A pod whose intent is not known to be its owner's, which only a person may repair, as text; or
    empty.
    """
    found = [place for place, state in pods.items() if state.foreign(owner)]
    if not found:
        return ""
    node, instance = min(found)
    intent = pods[node, instance].intent
    what = f"belongs to {intent.record.owner}" if intent is not None else "does not decode"
    return f"{node}/{instance}: its intent {what}"
