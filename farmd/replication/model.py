"""The snapshot and the plan of a replication controller."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from farmd.pods.state import PodState, sick_since
from farmd.work.owned import ReplicaPlan, ReplicaSnapshot
from scheduler.model import Assignment
from store.features import ONE_SHOT
from store.pods import Place
from store.rcs import ReplicationController
from store.rollouts import KIND as ROLLOUTS
from store.work import Transfer

Cause = Literal["ineligible", "draining", "unhealthy"]
Purpose = Literal["additions", "moves", "transfer"]


Fact = Literal["retained", "lock", "room", "places"]
"""Which nodes may keep their pods; who holds the mutation lock; whether outdated pods have room; places."""


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that a decision lacks; for places also how many, and which pods move there."""

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
        changes = changes or self.completions
        return bool(changes) or self.marks or self.step is not None

    def counts(self) -> dict[str, int | str]:
        """The numbers of changes, for the log."""
        step = self.step.action if self.step is not None else ""
        return {**ReplicaPlan.counts(self), "moved": len(self.moves), "step": step}
