"""What a rollout's decision is made from, and what it says.

Forward, pods go from the old controller to the new one; back, the other way round. ``source`` and ``target``
are the two sides in the direction of now, ``old`` and ``new`` never change places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farmd.pods.state import PodState, replaceable_at
from farmd.rollout.verdict import Standings
from farmd.work.model import Blocked
from scheduler.model import Assignment
from store.pods import Place
from store.rcs import ReplicationController
from store.rollouts import Ending, Rollout, RolloutState

Fact = Literal["fit", "places", "homes"]
"""Which nodes may keep a pod of the target in place of one of the source; places for other pods of the
target; places for pods of the source."""
FACTS: frozenset[Fact] = frozenset({"fit", "places", "homes"})


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that a decision lacks: of places so many, from where these pods go."""

    fact: Fact
    count: int = 0
    leaving: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """Places that the scheduler offers; ``why`` says why there are not enough."""

    assignments: tuple[Assignment, ...] = ()
    missing: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One controller and its pods. ``stop_after`` is its manifest's (R27).

    ``terminating``: pods that were removed, and whose processes may run still. ``more`` pods are available
    and leave after all others; a dry run counts them and lists only the next.
    """

    rc: ReplicationController
    pods: Mapping[Place, PodState] = field(default_factory=dict)
    stop_after: float = 0.0
    more: int = 0
    terminating: int = 0

    @property
    def desired(self) -> int:
        """Its count."""
        return self.rc.replicas_desired

    @property
    def available(self) -> int:
        """Its pods that are available on its manifest: what the floor counts."""
        serving = sum(
            state.available and not state.outdated(self.rc.manifest) for state in self.pods.values()
        )
        return serving + self.more

    @property
    def outdated(self) -> tuple[Place, ...]:
        """Its pods of a version that was superseded."""
        return tuple(place for place, state in self.pods.items() if state.outdated(self.rc.manifest))

    @property
    def placed(self) -> int:
        """How many pods it has."""
        return len(self.pods) + self.more

    @property
    def ailing(self) -> Place | None:
        """The first of its pods on its manifest that is not available."""
        own = self.pods.keys() - self.outdated
        return min((place for place in own if not self.pods[place].available), default=None)

    def how(self, place: Place) -> str:
        """A pod that is not available, and how it is: ``n7/web starting``."""
        state, name = self.pods[place], "/".join(place)
        seen = state.reality
        if state.absent or state.lost is not None:
            return f"{name} on an absent node"
        if seen is None or state.intent is None or seen.intent < state.intent.index:
            return f"{name} starting"
        if state.healthy:
            return f"{name} settling"
        return f"{name} not healthy" if seen.phase == "running" else f"{name} {seen.phase}"

    @property
    def settled(self) -> int:
        """Available pods that may stay, at most as many as it should have (p2: the old RC may label pods
        beyond that). A pod that a forced drain takes whatever the floor is holds no other one up.
        """
        going = sum(state.available and state.draining == "forced" for state in self.pods.values())
        return max(0, min(self.available - going, self.desired))

    @property
    def serving(self) -> int:
        """Available pods of all its versions that may stay: what they add to the floor (R14)."""
        others = [self.pods[place] for place in self.outdated]
        serving = sum(state.available and state.draining != "forced" for state in others)
        return max(0, min(self.settled + serving, self.desired))

    @property
    def missing(self) -> int:
        """How many pods it should have and has not."""
        return max(0, self.desired - self.placed)

    @property
    def waived(self) -> int:
        """Pods on lost nodes that are not to be replaced: nobody waits for them."""
        return sum(state.lost is not None and self.rc.on_lost == "wait" for state in self.pods.values())

    def replaceable(self, state: PodState, now: float) -> bool:
        """Whether the node is given up, and what ran there has stopped if it ever will."""
        at = replaceable_at(state, self.rc.on_lost, self.stop_after)
        return at is not None and at <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One rollout at one moment; ``old`` or ``new`` None: that controller is gone.

    ``frozen`` is the evidence of a freeze that holds it, for ``frozen_for`` seconds now; ``curable``: it
    is mass ill health, which holds no way back. ``locked`` names another holder of a mutation lock, ``locks``
    is whether this claim's session holds both. ``busy`` says what a worker of one of the controllers has to
    end first. ``risen``: when this worker last saw progress (seconds since
    the epoch). ``now``: likewise. ``gates`` is what gates said, by their names. ``fit`` are places of the
    source that the target may take over in place, ``offer`` places for the target's pods, ``homes`` for those
    of the source.
    """

    rollout: Rollout
    state: RolloutState | None = None
    old: Side | None = None
    new: Side | None = None
    frozen: str | None = None
    frozen_for: float = 0.0
    curable: bool = False
    locked: str = ""
    locks: bool = False
    busy: str = ""
    risen: float = 0.0
    now: float = 0.0
    gates: Standings = field(default_factory=dict)
    fit: frozenset[Place] = frozenset()
    offer: Offer = Offer()
    homes: Offer = Offer()
    unread: frozenset[Fact] = frozenset()

    @property
    def back(self) -> bool:
        """Whether it goes back."""
        return self.state is not None and self.state.back

    @property
    def superseded(self) -> bool:
        """Whether a person wants another version than the one that its state is about."""
        behind = self.state is not None and self.state.superseded < len(self.rollout.superseded)
        return behind and self.rollout.wish != "revert"

    @property
    def sides(self) -> tuple[Side, Side]:
        """(source, target) in the direction of now."""
        assert self.old is not None
        assert self.new is not None
        return (self.new, self.old) if self.back else (self.old, self.new)


@dataclass(frozen=True, slots=True)
class Move:
    """One pod's way.

    ``take``: the target gets a pod for one of the source's; without a place the source had only the count
    of it. ``drop``: a pod of the source goes. ``grow``: the target gets one more. ``refill``: the target
    gets a pod that it lacks, or one in place of its own on a node that is given up; no count changes.
    ``restore``: the same for the source. After a scale: ``trim``: a pod of the target goes. ``raise``: the
    source is to have one more.
    """

    way: Literal["take", "drop", "grow", "refill", "restore", "trim", "raise"]
    source: Place | None = None
    target: Assignment | None = None

    @property
    def in_place(self) -> bool:
        """Whether the target's pod stands where the source's stood."""
        return self.target is not None and self.source == (self.target.node, self.target.instance)


@dataclass(frozen=True, slots=True)
class Moves:
    """What to change of both sides' pods in one transaction; ``waiting`` says why nothing more can move now,
    ``short`` why there are not enough places."""

    moves: tuple[Move, ...] = ()
    waiting: str = ""
    short: str = ""

    @property
    def restores(self) -> bool:
        """Whether the pods that come are the source's; no other move is beside these."""
        return any(move.way == "restore" for move in self.moves)

    @property
    def removed(self) -> int:
        """By how much the source's count falls."""
        return sum(move.way in ("take", "drop") for move in self.moves) - self._count("raise")

    @property
    def added(self) -> int:
        """By how much the target's count rises."""
        return sum(move.way in ("take", "grow") for move in self.moves) - self._count("trim")

    def _count(self, way: str) -> int:
        return sum(move.way == way for move in self.moves)


Action = Literal["take", "lock", "rest", "next", "switch", "halt", "back", "end"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A transition, written in one transaction: the state afterwards, and why. ``end`` has an outcome."""

    action: Action
    state: RolloutState | None
    reason: str = ""
    outcome: Ending = "done"

    @property
    def takes(self) -> bool:
        """Whether both controllers are the rollout's alone from then on."""
        return self.state is not None and self.state.phase == "moving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now: a turn, or moves and repairs of intents; else what is waited for.

    ``fault`` is what people are alerted of; ``asks`` the stage, from 1, that waits for a person's word.
    """

    turn: Turn | None = None
    moves: Moves = Moves()
    repairs: tuple[tuple[str, Place], ...] = ()
    blocked: Blocked | None = None
    waiting: str = ""
    after: float | None = None
    fault: str = ""
    asks: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but a status."""
        return self.turn is None and not self.moves.moves and not self.repairs

    @property
    def ends(self) -> bool:
        """The rollout's end is a turn of its own."""
        return False
