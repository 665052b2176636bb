"""What a replication controller's decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from farmd.pods.state import Place, PodState
from farmd.work.model import Blocked
from scheduler.model import Assignment
from store.rcs import ReplicationController
from store.work import Transfer

Cause = Literal["ineligible", "draining", "unhealthy"]
Purpose = Literal["additions", "moves", "transfer"]


Fact = Literal["retained", "lock", "room", "places"]
"""Which nodes may keep their pods; who holds the mutation lock; whether outdated pods have room; places."""


@dataclass(frozen=True, slots=True)
class Need:
    """What must be asked for: of places so many, and which pods go there from where."""

    purpose: Purpose = "additions"
    count: int = 0
    places: tuple[Place, ...] = ()
    cause: Cause = "ineligible"
    fact: Fact = "places"


@dataclass(frozen=True, slots=True)
class Offer:
    """Places that the scheduler offers; ``why`` says why there are not enough.

    ``contended``: only until other workers of this process have changed what they are changing.
    """

    assignments: tuple[Assignment, ...] = ()
    missing: int = 0
    why: str = ""
    purpose: Purpose = "additions"
    contended: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One RC and its world at one moment.

    ``frozen`` says why removals stand still; ``commanded`` that the record was changed after that, so
    that its count is a person's explicit word (R18). ``transfer`` is the move under way; ``not_before`` when
    the next may start after one that ``failed`` for that cause, ``locked`` who holds the mutation lock,
    ``crowded``: as many moves as allowed are under way in the fleet, ``taken`` who has the place that the
    move under way reserved.
    Times are seconds since the epoch, ``stop_after`` is the manifest's. ``cramped`` are outdated pods
    whose nodes have no room for what the RC's manifest asks for. ``running`` says which processes nodes
    still run of an RC that is being deleted and has no pods any more. ``unread`` are the facts that were not
    asked for yet: they cost a question. ``judged``: ``retained`` is known of these very pods and nodes.
    """

    rc: ReplicationController
    pods: Mapping[Place, PodState]
    offer: Offer = Offer()
    frozen: str | None = None
    commanded: bool = False
    now: float = 0.0
    transfer: Transfer | None = None
    not_before: float = 0.0
    failed: str = ""
    locked: str = ""
    crowded: bool = False
    taken: str = ""
    roomless: bool = False
    stop_after: float = 0.0
    cramped: frozenset[Place] = frozenset()
    running: str = ""
    unread: frozenset[Fact] = frozenset()
    judged: bool = True

    @property
    def outdated(self) -> list[Place]:
        """Pods that should run another manifest than the RC's."""
        return [place for place, state in self.pods.items() if state.outdated(self.rc.manifest)]


@dataclass(frozen=True, slots=True)
class Step:
    """The next step of a move from ``old`` to ``new``; ``rollback`` is a failure, ``cancel`` is not."""

    action: Literal["start", "place", "finish", "rollback", "cancel"]
    old: Place
    new: Place
    cause: Cause
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change now.

    ``repairs`` are pods whose intent was lost or altered, ``replacements`` outdated pods that take the
    RC's manifest in place, ``moves`` pods that go elsewhere without waiting for their successors,
    ``step`` that of a move that waits. ``blocked`` says what stands in the way of the rest, ``waiting``
    what is merely not over yet; ``after`` (seconds) when time alone changes something. ``ends``: nothing is
    left of an RC that is being deleted, and its record goes. ``contended``: why to plan again in a moment.
    """

    additions: tuple[Assignment, ...] = ()
    removals: tuple[Place, ...] = ()
    repairs: tuple[Place, ...] = ()
    replacements: tuple[Place, ...] = ()
    blocked: Blocked | None = None
    moves: tuple[tuple[Place, Assignment], ...] = ()
    step: Step | None = None
    waiting: str = ""
    after: float | None = None
    ends: bool = False
    contended: str = ""

    @property
    def arriving(self) -> tuple[Place, ...]:
        """Where a pod comes that is not there yet; the start of a move chooses its place."""
        if self.step is not None:
            return (self.step.new,) if self.step.action in ("start", "place") else ()
        goals = [*self.additions, *(goal for _, goal in self.moves)]
        return tuple((goal.node, goal.instance) for goal in goals)

    @property
    def changes_pods(self) -> bool:
        """Whether pods, or what is noted of a move, change."""
        changes = self.additions or self.removals or self.repairs or self.replacements or self.moves
        return bool(changes) or self.step is not None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but a status."""
        return not (self.changes_pods or self.ends or self.contended)

    def counts(self) -> dict[str, int | str]:
        """What changes, for the log."""
        return {
            "placed": len(self.additions),
            "removed": len(self.removals),
            "moved": len(self.moves),
            "repaired": len(self.repairs),
            "replaced": len(self.replacements),
            "step": self.step.action if self.step is not None else "",
        }
