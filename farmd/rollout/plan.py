"""What a rollout does next, phase by phase: pure (p2 ``pkg/roll/update.go``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from farmd.kinds import KINDS
from farmd.pods.state import altered, foreign
from farmd.rollout import judgement, membership, progress
from farmd.rollout.facts import Moves, Need, Plan, Side, Snapshot, Turn
from farmd.rollout.progress import complete, floor, goal, last, stage, stages
from farmd.rollout.stages import StageGoal, ceiling, goals, minimum
from farmd.rollout.staging import (
    RolloutOrchestrator,
    StagePodAutoscaler,
    TargetRevision,
    retrieve_revs_up_down,
)
from farmd.rollout.steps import AVAILABILITY_STRATEGY, RESOURCE_UTIL_STRATEGY, concluded, new_rollout_strategy
from farmd.work.model import Ask, Blocked, frozen
from store.policies import at_most
from store.rollouts import RolloutState
from store.words import count_of

# Both controllers of a rollout as what its strategy's steps scale: pure.
#
# A controller's bounds are its count, and its scale is how many of its pods are available. Which pods come
# or go until it has a count is decided in ``membership``.


def carried_out(shot: Snapshot, goal: StageGoal, floor: int, healthy: bool) -> tuple[bool, Moves | Need]:
    """Whether the stage is done, and what to move now; ``healthy``: pods that come must be available."""
    rollout = orchestrator(shot, goal, floor)
    controllers = Controllers(shot, goal, floor, healthy)
    strategy = new_rollout_strategy(controllers)[rollout.rollout_strategy]
    up, down = retrieve_revs_up_down(rollout.stage_target_revisions)
    rollout, ready = strategy.reconcile(rollout, up, down)
    done = ready and concluded(rollout).stage_ready is True
    return done, membership.restored(shot, controllers.planned, goal, floor)


def orchestrator(shot: Snapshot, goal: StageGoal, floor: int) -> RolloutOrchestrator:
    """The stage of a rollout as its steps see it: one controller grows, the other one shrinks.

    What grows has at most what the ceiling leaves it, until more of the others are gone. Where old pods go
    first, only so many go that the floor holds without those that are to come.
    """
    (source, target), record = shot.sides, shot.rollout
    stay, there = (goal.new, goal.old) if shot.back else (goal.old, goal.new)
    whole = record.started_from if shot.back else record.replicas
    first = stay
    strategy = AVAILABILITY_STRATEGY
    if not record.policy.beside:
        first = max(stay, min(source.desired, floor - target.desired))
        strategy = RESOURCE_UTIL_STRATEGY
    most = ceiling(record, goals(record, minimum(record))) - source.desired - source.terminating
    grows = min(there, max(target.desired, most))
    return RolloutOrchestrator(
        name=record.name,
        rollout_strategy=strategy,
        initial_revisions=(TargetRevision(revision_name=source.rc.id, percent=100),),
        target_revisions=(TargetRevision(revision_name=target.rc.id, percent=100),),
        stage_target_revisions=(
            _revision(source, first, max(source.desired, stay), "down"),
            _revision(target, grows, whole, "up"),
        ),
    )


def _revision(side: Side, count: int, whole: int, direction: Literal["up", "down"]) -> TargetRevision:
    part = count if direction == "up" else whole - count
    share = part * 100 // whole if whole else 100
    return TargetRevision(
        revision_name=side.rc.id,
        direction=direction,
        percent=share if direction == "up" else (100 - share) or None,
        target_replicas=count,
        min_scale=whole,
        max_scale=whole,
    )


@dataclass(slots=True)
class Controllers:
    """The controllers of a moment (``ScaleTarget``). ``planned``: the moves of the first step with any."""

    shot: Snapshot
    goal: StageGoal
    floor: int
    healthy: bool
    planned: Moves | Need = field(default_factory=Moves)

    def autoscaler(self, revision: str) -> StagePodAutoscaler | None:
        """A controller's count, and how many of its pods are there; not known once some are to be moved."""
        source, target = self.shot.sides
        grows = revision == target.rc.id
        side = target if grows else source
        found = StagePodAutoscaler(name=revision, stage_min=side.desired, stage_max=side.desired)
        if self.moving:
            return found
        actual = self._serving(side) if grows else side.placed
        return msgspec.structs.replace(
            found, desired=side.desired, actual=actual, terminating=side.terminating
        )

    def scale(self, wanted: StagePodAutoscaler) -> None:
        """Plan the moves of one transaction toward a count, unless a step before has some."""
        if self.moving:
            return
        stay = self.goal.new if self.shot.back else self.goal.old
        change = membership.grown if wanted.name == self.shot.sides[1].rc.id else membership.shrunk
        found = change(self.shot, wanted.stage_min or 0, stay, self.floor)
        if isinstance(found, Need) or found.moves or found.short:
            self.planned = found

    @property
    def moving(self) -> bool:
        """Whether a step has planned moves."""
        return isinstance(self.planned, Need) or bool(self.planned.moves)

    def _serving(self, side: Side) -> int:
        """Pods that count as available; those that are not placed yet never do."""
        if not self.healthy:
            return side.desired - side.missing - len(side.outdated)
        tolerated = at_most(self.shot.rollout.policy.tolerate, self.shot.rollout.replicas)
        return min(side.desired, side.settled + side.waived + tolerated) - side.missing


# What a rollout does next: pure (p2 ``pkg/roll/update.go``, spec of the phases below).
#
# pending → moving ⇄ halted, moving → baking → moving … → end. While it moves, the rollout has taken both
# controllers and alone changes their pods; in every other phase they are lent, and heal themselves. What
# must never break: a rollout that goes back never turns forward again, no stage falls, nothing moves under
# a freeze, and each wait has an end or says why it has none.

FROZEN_SECONDS = 30.0
# Nobody says when a mutation lock that another holds is free.
LOCK_LOOK_SECONDS = 5.0


def decide(shot: Snapshot) -> Plan | Ask[Need]:
    """Plan one cycle, or ask for what it needs to know first."""
    if shot.old is None or shot.new is None:
        return _end(shot, "aborted", "one of the controllers was deleted")
    wish, state = shot.rollout.wish, shot.state
    # An abort moves no pod, so neither a pause nor a freeze holds it. A way back moves pods, and is held.
    if wish == "abort":
        return _end(shot, "aborted", "a person aborted it")
    if (held := _held(shot)) is not None:
        # A superseded version is not reverted: the version that replaces it is next once nothing holds.
        return (None if shot.superseded else _cure(shot, held)) or _halted(shot, held)
    if wish == "revert" and not shot.back:
        return progress.turn_back(shot, "a person reverted it")
    if state is None:
        return _begin(shot)
    if shot.superseded:
        # From the first stage: what was proven so far was another version.
        return Plan(turn=Turn("take", _moves_on(shot, 0, back=False), "a person superseded the version"))
    if state.phase == "halted":
        return _resumed(shot, state)
    if (fault := progress.refuted(shot, state, goal(shot).gates)) is not None:
        return fault
    if state.phase == "baking":
        return _baking(shot, state)
    return _moving(shot, state)


# -- what holds it ------------------------------------------------------------------------------
def _held(shot: Snapshot) -> Blocked | None:
    """Why nothing may move, whatever the phase."""
    if shot.rollout.paused:
        text = f"paused; farmctl rollout resume {shot.rollout.name} continues it"
        return Blocked("paused", text, wanted=True)
    for side in (shot.old, shot.new):
        if side is not None and side.rc.disabled:
            return Blocked("disabled", f"{KINDS[shot.rollout.of].one} {side.rc.name} is disabled")
    if shot.locked:
        return Blocked("locked", f"locked by {shot.locked}")
    return frozen(shot.frozen) if shot.frozen is not None else None


def _cure(shot: Snapshot, held: Blocked) -> Plan | None:
    """Mass ill health holds it forward only: the version that fails is reverted like any other (R19)."""
    if not held.frozen or not shot.curable or shot.state is None or shot.back:
        return None
    fault = progress.refuted(shot, shot.state, goal(shot).gates) or progress.fault(shot, complete(shot))
    return fault if fault is not None and fault.turn is not None and fault.turn.action == "back" else None


def _halted(shot: Snapshot, held: Blocked) -> Plan:
    """Stop: give the controllers back, so that they heal. A short freeze is waited for as it is."""
    state = shot.state
    due = [LOCK_LOOK_SECONDS] if held.code == "locked" else []
    if held.frozen and shot.curable and state is not None:
        due.append(progress.deadline(shot) - shot.now)
    if state is None or state.phase != "moving":  # the controllers are lent, and heal already
        return Plan(blocked=held, after=min((left for left in due if left > 0), default=None))
    # To give the controllers back and take them again costs two transactions and a read of all pods.
    if held.frozen and shot.frozen_for < FROZEN_SECONDS:
        due.append(FROZEN_SECONDS - shot.frozen_for)
        return Plan(blocked=held, after=min(left for left in due if left > 0))
    cause = _cause(shot) or held.code
    # A rollout that is frozen again and again still fails in time; a person's pause forgives the time before.
    idle = 0.0 if shot.rollout.paused else shot.now - shot.frozen_for - progress.progressed(shot)
    halted = replace(
        state,
        phase="halted",
        since=shot.now,
        cause=cause,
        resumed=shot.rollout.resumed,
        idle=max(0.0, idle),
    )
    return Plan(turn=Turn("halt", halted, held.text))


def _resumed(shot: Snapshot, state: RolloutState) -> Plan:
    """The reason for the halt is over; after a fault, a person has to say so."""
    if state.fault and shot.rollout.resumed <= state.resumed:
        hint = f"farmctl rollout resume | revert | abort {shot.rollout.name}"
        return Plan(blocked=Blocked("failed", f"{state.cause}; {hint}"), fault=state.cause)
    return Plan(
        turn=Turn("take", replace(_moves_on(shot, stage(shot)), idle=state.idle), "what held it is over")
    )


# -- phases -------------------------------------------------------------------------------------
def _begin(shot: Snapshot) -> Plan:
    if (waits := _unapproved(shot, 0)) is not None:
        return waits
    return Plan(turn=Turn("take", _moves_on(shot, 0), "it begins"))


def _moves_on(shot: Snapshot, number: int, *, back: bool | None = None) -> RolloutState:
    state = shot.state or RolloutState(phase="moving")
    back = state.back if back is None else back
    return RolloutState(
        phase="moving",
        back=back,
        stage=number,
        since=shot.now,
        cause=_cause(shot) if back else "",
        switched=state.switched,
        superseded=len(shot.rollout.superseded),
    )


def _cause(shot: Snapshot) -> str:
    """Why it goes back stays known until the end."""
    return shot.state.cause if shot.back and shot.state is not None else ""


def _baking(shot: Snapshot, state: RolloutState) -> Plan:
    """A stage was reached: let it bake, and wait for approval if the stage needs it."""
    if not _as_wanted(shot):
        return Plan(turn=Turn("take", _moves_on(shot, stage(shot)), "it was scaled"))
    if (fault := progress.fault(shot, complete(shot))) is not None:
        return fault
    if not complete(shot):
        return Plan(waiting=membership.waits(shot, goal(shot), floor(shot)), after=progress.due(shot))
    if (waits := _gated(shot, state, goal(shot))) is not None:
        return waits
    if last(shot):
        # Only a rollout that has taken its controllers can end: the end writes both.
        ending = replace(_moves_on(shot, stage(shot)), reached=state.reached)
        return Plan(turn=Turn("take", ending, "the last stage is over"))
    if (waits := _unapproved(shot, stage(shot) + 1)) is not None:
        return waits
    # The service switches before the old pods of the next stage leave.
    if stages(shot)[stage(shot) + 1].switch and not state.switched:
        return Plan(turn=_switch(shot, state))
    return Plan(turn=Turn("take", _moves_on(shot, stage(shot) + 1), f"stage {stage(shot) + 2} begins"))


def _gated(shot: Snapshot, state: RolloutState, reached: StageGoal) -> Plan | None:
    """Wait for the bake time of a stage and for its gates, up to their deadline."""
    told = "the service is switched" if state.switched else f"stage {stage(shot) + 1} is reached"
    patience = shot.rollout.policy.progress_deadline
    limits = judgement.limits(reached.gates, shot.gates, state.reached, reached.bake, patience)
    if limits and limits[0][0] <= shot.now:
        return progress.stuck(shot, state, limits[0][1])
    due = [at - shot.now for at, _ in limits]
    if (rest := state.reached + reached.bake - shot.now) > 0:
        return Plan(waiting=f"{told} and rests", after=min([rest, *due]))
    gate = judgement.pending(reached.gates, shot.gates)
    return Plan(waiting=f"{told}; {gate}", after=min(due, default=None)) if gate else None


def _switch(shot: Snapshot, state: RolloutState) -> Turn:
    """The service names the other version from now on. Forward, the old pods stay for a while as they are."""
    if state.back:
        return Turn("switch", replace(state, since=shot.now, switched=False), "the old version serves again")
    switched = replace(
        state, phase="baking", stage=stage(shot), since=shot.now, reached=shot.now, switched=True
    )
    return Turn("switch", switched, "the new version serves")


def _unapproved(shot: Snapshot, number: int) -> Plan | None:
    """Wait for approval, if the stage needs it."""
    if not progress.unapproved(shot, number):
        return None
    ask = f"stage {number + 1} waits for farmctl rollout approve {shot.rollout.name}"
    return Plan(blocked=Blocked("unapproved", ask, wanted=True), asks=number + 1)


def _moving(shot: Snapshot, state: RolloutState) -> Plan | Ask[Need]:
    if not shot.locks:  # they ended with the session of the farm that had the rollout before (R13)
        return Plan(turn=Turn("lock", state, "it goes on"))
    if shot.busy:  # a controller's own worker ends the move that it had begun (R14)
        return Plan(waiting=shot.busy)
    if shot.spread is not None and shot.spread != (to := progress.spread(shot)):
        return Plan(turn=Turn("spread", state, f"the new version shall run on {to[0]} of the nodes"))
    # Back: the service names the old version once enough of its pods serve, before pods of the new one leave.
    if shot.back and state.switched and shot.old is not None and shot.old.settled >= floor(shot):
        return Plan(turn=_switch(shot, state))
    reached, found = _pushed(shot)
    if reached:
        return _passed(shot, state)
    if (fault := progress.fault(shot, complete(shot))) is not None:
        return fault
    if isinstance(found, Need):
        return Ask(found)
    repairs = () if found.moves else _repairs(shot)  # one transaction has room for one of both (R25)
    return Plan(
        moves=found,
        repairs=repairs,
        blocked=_short(shot, found),
        waiting=found.waiting,
        after=progress.due(shot),
    )


def _pushed(shot: Snapshot) -> tuple[bool, Moves | Need]:
    """Whether the stage is reached, and what to move now."""
    wanted, least = goal(shot), floor(shot)
    if shot.rollout.policy.strategy == "rolling":
        reached = _reached(shot)
        if shot.spread is not None:  # the daemon set's own worker changes its pods
            return reached, Moves(waiting=_spreading(shot, wanted, least))
        return reached, Moves() if reached else membership.plan(shot, wanted, least)
    # New pods must be available in each stage but the last, where the policy may say otherwise (p2).
    healthy = shot.back or shot.rollout.policy.require_healthy_end or not last(shot)
    done, found = carried_out(shot, wanted, least, healthy)
    return done and _as_wanted(shot), found


def _spreading(shot: Snapshot, wanted: StageGoal, least: int) -> str:
    told = membership.waits(shot, wanted, least)
    return f"{told}; {count_of(shot.away, 'absent node')} not waited for" if shot.away else told


def _short(shot: Snapshot, found: Moves) -> Blocked | None:
    """What only others can change: a place that belongs to somebody else, or too few places."""
    sides = [side for side in (shot.old, shot.new) if side is not None]
    held = next(filter(None, (foreign(side.rc.id, side.pods) for side in sides)), "")
    if held:
        return Blocked("foreign", held)
    return Blocked("no_room", found.short) if found.short else None


def _passed(shot: Snapshot, state: RolloutState) -> Plan:
    """The goal is met: the end, a rest, or the next stage."""
    if shot.back:
        return _end(shot, "reverted", state.cause)
    wanted, now = stages(shot), stage(shot)
    if last(shot) and (state.reached or not wanted[now].rests):
        left = f"; {count_of(shot.away, 'absent node')} not waited for" if shot.away else ""
        return _end(shot, "done", f"{shot.rollout.replicas} pods of the new version are available{left}")
    if goal(shot).rests or _unapproved(shot, now + 1) is not None:
        resting = replace(state, phase="baking", stage=now, since=shot.now, reached=shot.now)
        return Plan(turn=Turn("rest", resting, f"stage {now + 1} is reached"))
    if wanted[now + 1].switch and not state.switched:
        return Plan(turn=_switch(shot, state))
    return Plan(turn=Turn("next", _moves_on(shot, now + 1), f"stage {now + 1} is reached"))


def _reached(shot: Snapshot) -> bool:
    """Whether both sides have the counts of the goal, and those that come are there and available.

    Pods that the source lacks are placed by its own worker, once the controllers are lent.
    """
    source, target = shot.sides
    if source.placed > source.desired or target.placed != target.desired:
        return False
    return _as_wanted(shot) and complete(shot)


def _as_wanted(shot: Snapshot) -> bool:
    """Whether both counts are those of the goal."""
    assert shot.old is not None
    assert shot.new is not None
    wanted = goal(shot)
    return (shot.old.desired, shot.new.desired) == (wanted.old, wanted.new)


def _end(shot: Snapshot, outcome: str, reason: str) -> Plan:
    return Plan(turn=Turn("end", shot.state, reason, outcome))  # type: ignore[arg-type]


def _repairs(shot: Snapshot) -> tuple[tuple[str, tuple[str, str]], ...]:
    """Pods whose intents were lost or changed, which only the rollout can repair now.

    Those of a daemon set are repaired by its own worker.
    """
    if shot.spread is not None:
        return ()
    found = []
    for side in (shot.old, shot.new):
        assert side is not None
        found += [(side.rc.id, place) for place in altered(side.rc.id, side.pods)]
    return tuple(found[:20])  # as many as fit into one transaction (R25)
