"""One rollout's world as a value: two controllers, pods by node, and a fleet that does what a plan says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from farmd.pods.state import PodState
from farmd.rollout import plan as planning
from farmd.rollout.facts import FACTS, Move, Need, Offer, Plan, Side, Snapshot
from farmd.work.model import Ask
from scheduler.model import Assignment
from store.entry import Stored
from store.pods import Place, Pod
from store.policies import Policy
from store.rcs import ReplicationController
from store.reality import Glance, Intent
from store.rollouts import Rollout, RolloutState, RolloutStatus, SideStatus

OLD, NEW, POD = "00aa", "00bb", "web"
OLDER, NEWER = "a" * 64, "b" * 64
NOW = 10_000.0
MOVING = RolloutStatus(
    state="progressing",
    reason="floor 9 = 7 old + 2 new: nothing may leave until n7/web is available",
    record=7,
    phase="moving",
    stage=2,
    stages=3,
    goal=5,
    minimum=9,
    began=NOW - 100,
    due=NOW + 530,
    ailing="n7/web starting",
    old=SideStatus(7, 7, 7),
    new=SideStatus(3, 3, 2),
)


def controller(side: str, count: int, **fields: Any) -> ReplicationController:
    manifest = OLDER if side == OLD else NEWER
    name = "web" if side == OLD else "web-5d01c2"
    told = {"min_healthy_time": 0.0, "max_unavailable": 1, "managed_by": "rollouts/1", "taken": True} | fields
    return ReplicationController(
        id=side, name=name, manifest=manifest, replicas_desired=count, pod_id=POD, **told
    )


def pod(side: str = OLD, *, healthy: bool | None = True, at: float = NOW - 500, **fields: Any) -> PodState:
    """A pod that its agent acted on; ``healthy`` None: nothing is known of it yet."""
    manifest = fields.pop("manifest", OLDER if side == OLD else NEWER)
    health = "passing" if healthy else "critical"
    seen = Glance(manifest, side, "running", 1.0, health, 5, at)  # type: ignore[arg-type]
    return PodState(
        Stored("pod", Pod(manifest=manifest, at=at), 4, b""),
        Stored("intent", Intent(manifest, side), 5, b""),
        None if healthy is None else seen,
        **fields,
    )


def rollout(total: int, minimum: int, **fields: Any) -> Rollout:
    policy = fields.pop("policy", {})
    began = fields.pop("began", total)
    return Rollout(
        id="1",
        name="web",
        old=OLD,
        new=NEW,
        from_manifest=OLDER,
        to_manifest=NEWER,
        replicas=total,
        started_from=began,
        started_to=0,
        policy=Policy(**({"minimum": minimum, "stages": ["100%"]} | policy)),
        **fields,
    )


@dataclasses.dataclass
class World:
    """A rollout and its fleet. ``free`` are empty nodes, ``ending`` counts the pods of each side that were
    removed and run still. ``step`` does what one cycle plans."""

    rollout: Rollout
    old: dict[Place, PodState]
    new: dict[Place, PodState] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    state: RolloutState | None = None
    free: list[str] = dataclasses.field(default_factory=list)
    now: float = NOW
    risen: float = NOW
    unfit: frozenset[Place] = frozenset()
    outcome: str = ""
    ending: dict[str, int] = dataclasses.field(default_factory=dict)

    def snapshot(self, **fields: Any) -> Snapshot:
        od, nd = self.counts.get(OLD, len(self.old)), self.counts.get(NEW, len(self.new))
        taken = self.state is not None and self.state.phase == "moving"
        told: dict[str, Any] = {
            "rollout": self.rollout,
            "state": self.state,
            "old": Side(controller(OLD, od, taken=taken), self.old, terminating=self.ending.get(OLD, 0)),
            "new": Side(
                controller(NEW, nd, taken=taken),
                self.new,
                terminating=self.ending.get(NEW, 0),
                mixed=bool(self.rollout.superseded),
            ),
            "locks": True,
            "risen": self.risen,
            "now": self.now,
            "unread": FACTS,
        }
        return Snapshot(**(told | fields))

    def decide(self, **fields: Any) -> Plan:
        """The plan, with the answers of a scheduler that has the free nodes."""
        shot = self.snapshot(**fields)
        found = planning.decide(shot)
        while isinstance(found, Ask):
            shot = self.answer(shot, found.need)
            found = planning.decide(shot)
        return found

    def answer(self, shot: Snapshot, need: Need) -> Snapshot:
        unread = shot.unread - {need.fact}
        if need.fact == "fit":
            return dataclasses.replace(shot, fit=frozenset(need.leaving) - self.unfit, unread=unread)
        places = tuple(Assignment(node, POD) for node in self.free[: need.count])
        missing = need.count - len(places)
        offer = Offer(places, missing, "no room" if missing else "")
        name = "homes" if need.fact == "homes" else "offer"
        return dataclasses.replace(shot, unread=unread, **{name: offer})

    def step(self, **fields: Any) -> Plan:
        plan = self.decide(**fields)
        if plan.turn is not None:
            self.state = plan.turn.state
            self.outcome = plan.turn.outcome if plan.turn.action == "end" else ""
            return plan
        sides: dict[str, dict[Place, PodState]] = {OLD: self.old, NEW: self.new}
        source, target = (NEW, OLD) if self.state is not None and self.state.back else (OLD, NEW)
        before = {side: self.counts.get(side, len(pods)) for side, pods in sides.items()}
        for move in plan.moves.moves:
            self._move(move, sides, source, target)
        self.counts[source] = before[source] - plan.moves.removed
        self.counts[target] = before[target] + plan.moves.added
        return plan

    def _move(self, move: Move, sides: Mapping[str, dict[Place, PodState]], source: str, target: str) -> None:
        if move.source is not None:
            side = target if move.way in ("refill", "trim") else source
            del sides[side][move.source]
            if move.way in ("drop", "trim"):
                self.ending[side] = self.ending.get(side, 0) + 1
            if not move.in_place:
                self.free.append(move.source[0])
        if move.target is not None:
            place = (move.target.node, move.target.instance)
            if place[0] in self.free:
                self.free.remove(place[0])
            comes = source if move.way == "restore" else target
            sides[comes][place] = pod(comes, healthy=None, at=self.now)

    def settle(self, healthy: bool = True) -> None:
        """Every agent acts, and each new pod passes its check, or fails it."""
        self.ending.clear()
        for side, pods in ((OLD, self.old), (NEW, self.new)):
            for place, state in pods.items():
                if state.reality is None:
                    pods[place] = pod(side, healthy=healthy, at=self.now)

    def available(self) -> int:
        return sum(state.available for pods in (self.old, self.new) for state in pods.values())


def on(count: int, side: str = OLD, **fields: Any) -> dict[Place, PodState]:
    """Pods on n0, n1, …"""
    return {(f"n{number:03}", POD): pod(side, **fields) for number in range(count)}
