"""The facts of one rollout: its snapshot, and how both controllers and their pods are read (R15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import msgspec

from farmd.failsafe.guard import FailsafeGuard, Freezes
from farmd.pods.state import PodState, observed, replaceable_at
from farmd.rollout import fitting
from farmd.rollout.judgement import Standings
from farmd.rollout.noun import controller
from farmd.work.context import Context
from farmd.work.managing import Steady
from farmd.work.model import Blocked
from scheduler.model import Assignment, FleetView, PlacementRequest
from store.daemonsets import DaemonSet
from store.entry import Entry, Stored
from store.families import RCS
from store.locks import Holder
from store.named import decode_named
from store.pods import Place
from store.policies import Part
from store.rcs import ReplicationController
from store.rollouts import KIND, Ending, Rollout, RolloutState
from store.work import Work

# What a rollout's decision is made from, and what it says.

Fact = Literal["fit", "places", "homes"]
"""Which nodes may keep a pod of the target in place of one of the source; places for other pods of the
target; places for pods of the source."""
FACTS: frozenset[Fact] = frozenset({"fit", "places", "homes"})


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that a decision needs: this many places, for pods that leave these."""

    fact: Fact
    count: int = 0
    leaving: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """Places that the scheduler offers; ``why`` says why there are not enough."""

    assignments: tuple[Assignment, ...] = ()
    missing: int = 0
    why: str = ""


def mixes(rollout: Rollout, rc: ReplicationController) -> bool:
    """Whether pods of a version that a person superseded may be among those of a controller."""
    return bool(rollout.superseded) and rc.id == rollout.new


@dataclass(frozen=True)
class Side:
    """One controller and its pods. ``stop_after`` is its manifest's (R27).

    ``terminating``: pods that were removed, and whose processes may run still. ``more`` pods are available
    and leave after all others; a dry run counts them and lists only the next. ``mixed`` is what ``mixes``
    says. Pods of the old controller may be of an earlier manifest, too, but they serve, and its own worker
    replaces them once it is lent.
    """

    rc: ReplicationController
    pods: Mapping[Place, PodState] = field(default_factory=dict)
    stop_after: float = 0.0
    more: int = 0
    terminating: int = 0
    mixed: bool = False

    @cached_property
    def desired(self) -> int:
        """Its count."""
        return self.rc.replicas_desired

    @cached_property
    def available(self) -> int:
        """Its own pods that are available: what the floor counts."""
        return sum(state.available for state in self.own.values()) + self.more

    @cached_property
    def own(self) -> Mapping[Place, PodState]:
        """Its pods without those of a version that was superseded."""
        gone = set(self.outdated)
        return (
            {place: state for place, state in self.pods.items() if place not in gone} if gone else self.pods
        )

    @cached_property
    def outdated(self) -> tuple[Place, ...]:
        """Its pods of a version that was superseded."""
        manifest = self.rc.manifest
        return tuple(place for place, state in self.pods.items() if self.mixed and state.outdated(manifest))

    @cached_property
    def placed(self) -> int:
        """How many pods it has."""
        return len(self.pods) + self.more

    @cached_property
    def ailing(self) -> Place | None:
        """The first of its own pods that is not available."""
        return min((place for place, state in self.own.items() if not state.available), default=None)

    @cached_property
    def settled(self) -> int:
        """Available pods that may stay, at most as many as it should have (p2: the old RC may label pods
        beyond that). A pod that a forced drain takes whatever the floor is holds no other one up.
        """
        going = sum(state.available and state.draining == "forced" for state in self.own.values())
        return max(0, min(self.available - going, self.desired))

    @cached_property
    def serving(self) -> int:
        """Available pods of all its versions that may stay: what they add to the floor (R14)."""
        others = [self.pods[place] for place in self.outdated]
        serving = sum(state.available and state.draining != "forced" for state in others)
        return max(0, min(self.settled + serving, self.desired))

    @cached_property
    def missing(self) -> int:
        """How many pods it should have and has not."""
        return max(0, self.desired - self.placed)

    @cached_property
    def waived(self) -> int:
        """Pods on lost nodes that are not replaced. The rollout does not wait for them."""
        return sum(state.lost is not None and self.rc.on_lost == "wait" for state in self.pods.values())

    def replaceable(self, state: PodState, now: float) -> bool:
        """Whether the node is given up, and what ran there has stopped if it ever will."""
        at = replaceable_at(state, self.rc.on_lost, self.stop_after)
        return at is not None and at <= now


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One rollout at one moment; ``old`` or ``new`` None: that controller is gone.

    ``frozen`` is the evidence of a freeze that holds it, for ``frozen_for`` seconds now; ``curable``: it
    is mass ill health, which holds no way back. ``locked`` names another holder of a mutation lock, ``locks``
    is whether this claim's session holds both. ``busy`` says what a worker of one of the controllers has to
    end first. ``risen``: when this worker last saw progress (seconds since
    the epoch). ``now``: likewise. ``gates`` is what gates said, by their names. ``fit`` are places of the
    source that the target may take over in place, ``offer`` places for the target's pods, ``homes`` for those
    of the source. ``spread``: on how many nodes, or on which share of them, the new version shall run, and
    whether that is held; None: it is no rollout over nodes. ``away``: nodes that nobody hears of, and whose
    pods nobody waits for.
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
    spread: tuple[Part, bool] | None = None
    away: int = 0
    unread: frozenset[Fact] = frozenset()
    derived: dict[Callable[[Snapshot], object], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def back(self) -> bool:
        """Whether it goes back."""
        return self.state is not None and self.state.back

    @cached_property
    def superseded(self) -> bool:
        """Whether a person wants another version than the one that its state is about."""
        behind = self.state is not None and self.state.superseded < len(self.rollout.superseded)
        return behind and self.rollout.wish != "revert"

    @cached_property
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
        """Whether the target's pod takes the place of the source's."""
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


Action = Literal["take", "lock", "spread", "rest", "next", "switch", "halt", "back", "end"]


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


REALITY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A snapshot, and what its plan is carried out with.

    ``records`` are the controllers as they were read, by id; ``locks`` the mutation locks that stand, by the
    controller's id; ``view``: what places were chosen from. ``daemonset`` is as it was read, in a rollout
    over nodes.
    """

    stored: Stored[Rollout]
    work: Stored[Work] | None
    snapshot: Snapshot
    records: dict[str, Stored[ReplicationController]] = field(default_factory=dict)
    locks: dict[str, Entry] = field(default_factory=dict)
    view: FleetView | None = None
    daemonset: Stored[DaemonSet] | None = None


class Reader:
    """Reads for one rollout under one claim of ``session``.

    ``_refreshed``: the last cycle read how the pods are, for this one; ``_refreshes``:
    this one did, for the next.
    """

    def __init__(self, item: str, session: str, context: Context, guards: Sequence[FailsafeGuard]) -> None:
        self._item = item
        self._session = session
        self._context = context
        self._guards = guards
        self._steady = Steady(context)
        self._refreshed = self._refreshes = False
        self._frozen_since: float | None = None
        self._best: tuple[RolloutState | None, int] = (None, -1)
        self._rests = False
        self._risen = context.clock.now()

    async def read(self, stored: Stored[Rollout]) -> Facts:
        """The rollout and its world, without what only sometimes matters."""
        self._refreshed, self._refreshes = self._refreshes, False
        context, rollout = self._context, stored.record
        work = context.caches.work.get(context.keys.work(KIND, self._item))
        state = work.record.rollout if work is not None else None
        records, locks = await self._records(rollout)
        ours = [lock for lock in locks.values() if of_rollout(lock, self._item)]
        others = [Holder.parse(lock.value) for lock in locks.values() if not of_rollout(lock, self._item)]
        held = len(ours) == 2 and all(lock.session == self._session for lock in ours)
        moving = state is not None and state.phase == "moving"
        taken = (rollout.old, rollout.new) if moving and held else ()
        busy = await self._steady.waits(dict.fromkeys(taken, RCS.name))
        old, new = [await self._side(rollout, records.get(rc)) for rc in (rollout.old, rollout.new)]
        back = state is not None and state.back
        frozen = self.freezes(stored, back=back or rollout.wish == "revert").evidence()
        snapshot = Snapshot(
            rollout=rollout,
            state=state,
            old=old,
            new=new,
            frozen=frozen,
            frozen_for=self._frozen_for(frozen),
            curable=frozen is not None and self.freezes(stored, back=True).evidence() is None,
            locked=f"{others[0].kind}/{others[0].id}" if others else "",
            locks=held,
            busy=next(iter(busy.values()), ""),
            risen=self._progress(state, old if back else new),
            now=context.clock.now(),
            unread=FACTS,
        )
        return Facts(stored=stored, work=work, snapshot=snapshot, records=records, locks=locks)

    async def _records(
        self, rollout: Rollout
    ) -> tuple[dict[str, Stored[ReplicationController]], dict[str, Entry]]:
        """Both controllers and their mutation locks, those that stand.

        Raises:
            NotRegistered: one is missing, and so may be the whole tree.
            RecordInvalid: one does not decode.
        """
        keys, client, ids = self._context.keys, self._context.client, (rollout.old, rollout.new)
        wanted = [keys.record(RCS.name, rc) for rc in ids] + [keys.mutation_lock(RCS.name, rc) for rc in ids]
        old, new, *locks = await asyncio.gather(*map(client.read, wanted))
        if old is None or new is None:
            # A tree that lost its sentinel is no evidence that a controller was deleted (R20).
            await self._context.caches.tree(RCS).barrier([keys.record(RCS.name, rc) for rc in ids])
        there = [(rc, entry) for rc, entry in zip(ids, (old, new), strict=True) if entry is not None]
        records = {rc: decode_named(ReplicationController, keys, entry) for rc, entry in there}
        return records, {rc: lock for rc, lock in zip(ids, locks, strict=True) if lock is not None}

    async def _side(self, rollout: Rollout, stored: Stored[ReplicationController] | None) -> Side | None:
        if stored is None:
            return None
        context, rc = self._context, stored.record
        least = rollout.policy.min_healthy_time
        pods = self.pods(rc, rc.min_healthy_time if least is None else least)
        lost = any(state.lost is not None for state in pods.values())
        stop_after = (await context.manifests.get(rc.manifest)).stop_after if lost else 0.0
        terminating = self._terminating(rollout, rc)
        return Side(rc, pods, stop_after, terminating=terminating, mixed=mixes(rollout, rc))

    def _terminating(self, rollout: Rollout, rc: ReplicationController) -> int:
        """Processes of pods that were removed; nodes that are given up are not waited for (R21)."""
        if rollout.policy.strategy == "rolling":
            return 0
        standing = self._context.fleet.pods(rc.id)
        return sum(place not in standing for place in self._context.fleet.processes.of(rc.id))

    def pods(self, rc: ReplicationController, min_healthy_time: float) -> dict[tuple[str, str], PodState]:
        """A controller's pods as they are now; one whose node is drained must leave it."""
        states = observed(self._context.fleet, rc.id, min_healthy_time, self._context.clock.mono())
        return {
            place: msgspec.structs.replace(state, retained=False) if state.draining else state
            for place, state in states.items()
        }

    async def refresh(self, shot: Snapshot) -> bool:
        """Read the states of both sides' pods again if they may be outdated. Returns whether anything was
        read (R15).

        What was read in this cycle counts even if the cycle is slow; otherwise it would be read forever.
        """
        if self._refreshed:
            return False
        places = [place for side in shot.sides for place in side.pods]
        keys = [self._context.keys.reality(*place) for place in places]
        self._refreshes = await self._context.caches.reality.fresh(keys, REALITY_SECONDS)
        return self._refreshes

    def freezes(self, stored: Stored[Rollout], *, back: bool) -> Freezes:
        """What may hold its moves. To revert the version that fails is the cure of mass ill health (R19)."""
        return Freezes(self._guards, stored.index, back)

    def _frozen_for(self, frozen: str | None) -> float:
        now = self._context.clock.mono()
        if frozen is None:
            self._frozen_since = None
            return 0.0
        if self._frozen_since is None:
            self._frozen_since = now
        return now - self._frozen_since

    def _progress(self, state: RolloutState | None, target: Side | None) -> float:
        """When more pods of the target became available than before in this phase, as this claim saw it, or
        the phase began; what it was idle before something held it counts, too (``RolloutState.idle``).

        While a stage rests all are: the time without progress begins when one of them is not any more.
        """
        settled, desired = (target.settled, target.desired) if target is not None else (0, 0)
        known, best = self._best
        rested, self._rests = (
            self._rests,
            settled >= desired and state is not None and state.phase == "baking",
        )
        if settled > best or rested:
            self._best, self._risen = (state, max(settled, best)), self._context.clock.now()
        elif known != state:
            began = state.since - state.idle if state is not None else self._context.clock.now()
            self._best, self._risen = (state, settled), began
        return self._risen

    # -- what the plan asks for -------------------------------------------------------------------
    async def answer(self, reading: Facts, need: Need) -> Facts:
        """The reading with the fact that was asked for.

        Raises:
            NotFound: a manifest is gone. SchedulerError: the scheduler has no trustworthy answer.
        """
        shot, view = reading.snapshot, self._context.fleet.view()
        source, target = shot.sides
        comes = source if need.fact == "homes" else target
        request, scheduler = await self.request(comes.rc), self._context.scheduler
        unread = shot.unread - {need.fact}
        if need.fact == "fit":
            asked = fitting.question(request, source.rc.id, need.leaving)
            answer = await scheduler.eligible_nodes(asked, view)
            fit = fitting.places(asked, answer, view)
            shot = replace(shot, fit=fit, unread=unread)
        else:
            elsewhere = msgspec.structs.replace(request, leaving=frozenset(need.leaving))
            found = await scheduler.allocate_nodes(elsewhere, need.count, view)
            offer, shot = Offer(found.assignments, found.missing, found.why), replace(shot, unread=unread)
            shot = replace(shot, homes=offer) if need.fact == "homes" else replace(shot, offer=offer)
        return replace(reading, snapshot=shot, view=view)

    async def request(self, rc: ReplicationController) -> PlacementRequest:
        """What the scheduler is asked for pods of a controller."""
        pods = controller().pods
        assert pods is not None
        return pods.request(rc, await self._context.manifests.of(rc))


def of_rollout(lock: Entry, item: str) -> bool:
    """Whether a mutation lock belongs to this rollout, under whatever claim."""
    holder = Holder.parse(lock.value)
    return (holder.kind, holder.id) == (KIND, item)
