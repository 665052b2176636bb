"""What a rollout will do if every pod of the new version becomes available at once: pure, for ``--dry-run``.

The planner that acts plans here too, on a world in which nothing fails; so both always agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import msgspec

from farmd.pods.state import PodState
from farmd.rollout import plan as planning
from farmd.rollout import progress
from farmd.rollout.facts import FACTS, Need, Offer, Plan, Side, Snapshot
from farmd.rollout.judgement import passed
from farmd.rollout.membership import ADDED, ELSEWHERE, IN_PLACE, REMOVED, ROOM
from farmd.rollout.stages import StageGoal, minimum
from farmd.work.model import Ask
from scheduler.model import Assignment
from store.entry import Stored
from store.pods import Place, Pod
from store.rcs import ReplicationController
from store.reality import Glance, Intent
from store.rollouts import Rollout

_SHOWN = 8
# As many pods as one transaction can move, and one more; a step costs the same, however many there are.
_LISTED = ROOM // min(IN_PLACE, ELSEWHERE, REMOVED, ADDED) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStage:
    """One stage: the counts (old, new) after each transaction, then its rest in seconds.

    ``after_switch``: seconds from the switch of the service, with which it begins, until its first change.
    """

    counts: tuple[tuple[int, int], ...] = ()
    bake: float = 0.0
    approve: bool = False
    gates: tuple[str, ...] = ()
    after_switch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All stages. ``elsewhere`` pods need a place on another node than that of the pod which they replace, or
    where none replaces another: so many stand beside those of before. ``most`` pods there are at a time.
    ``short`` says why there are not enough such places now, ``stopped`` why it would not come to its end."""

    minimum: int
    stages: tuple[SimulatedStage, ...]
    elsewhere: int = 0
    most: int = 0
    places: str = ""
    short: str = ""
    stopped: str = ""

    def lines(self) -> list[str]:
        """For people, one line a stage."""
        told = [_line(number, self) for number in range(len(self.stages))]
        told.append(f"at least {self.minimum} available; {self.places}")
        told += [f"no place: {self.short}"] if self.short else []
        return [*told, f"then it stops: {self.stopped}"] if self.stopped else told

    def document(self) -> dict[str, Any]:
        """For JSON."""
        stages = [
            {
                "old_new": [list(pair) for pair in each.counts],
                "bake": each.bake,
                "approve": each.approve,
                "gates": list(each.gates),
                "after_switch": each.after_switch,
            }
            for each in self.stages
        ]
        places = {"elsewhere": self.elsewhere, "most": self.most, "short": self.short}
        return {"minimum": self.minimum, "stages": stages, **places, "stopped": self.stopped}


def _line(number: int, course: Course) -> str:
    each, pairs = course.stages[number], [f"{old}/{new}" for old, new in course.stages[number].counts]
    if len(pairs) > _SHOWN:
        pairs = [*pairs[: _SHOWN - 3], "...", *pairs[-2:]]
    told = f"stage {number + 1} of {len(course.stages)}  old/new {' '.join(pairs)}"
    waits = ["after approval"] if each.approve else []
    waits += [f"{each.after_switch:g} s after the switch"] if each.after_switch is not None else []
    waits += [f"then rests {each.bake:g} s"] if each.bake else []
    waits += [f"gate{'s' if each.gates[1:] else ''} {', '.join(each.gates)}"] if each.gates else []
    return f"{told}  {', '.join(waits)}".rstrip()


def simulate(
    rollout: Rollout, old: ReplicationController, new: ReplicationController, unfit: Collection[Place] = ()
) -> Course:
    """The course of a rollout that begins now; ``unfit`` places may not keep a pod of the new version."""
    goals = progress.stages(Snapshot(rollout=rollout, old=Side(old), new=Side(new)))
    left = sorted(unfit)[: rollout.started_from]
    others = (("old", str(number)) for number in count())
    queue = chain(left, others)
    shot = Snapshot(
        rollout=msgspec.structs.replace(rollout, approved=len(goals)),
        old=_listed(Side(old, more=rollout.started_from), queue),
        new=Side(new, more=rollout.started_to),
        locks=True,
        gates=passed(rollout.policy.gates),
    )
    reached: list[list[tuple[int, int]]] = [[] for _ in goals]
    reached[0].append((rollout.started_from, rollout.started_to))
    elsewhere, most = 0, rollout.started_from + rollout.started_to
    for number in count():
        plan, now = _decided(shot, frozenset(left), number), progress.stage(shot)
        if plan.turn is not None and plan.turn.action == "end":
            stopped = "" if plan.turn.outcome == "done" else plan.turn.reason
            break
        following = _after(shot, plan, queue)
        if following is None:
            stopped = plan.blocked.text if plan.blocked is not None else plan.waiting
            break
        shot = following
        if plan.turn is None:
            elsewhere += sum(move.target is not None and not move.in_place for move in plan.moves.moves)
        assert shot.old is not None
        assert shot.new is not None
        counts = (shot.old.desired, shot.new.desired)
        if counts != next(each[-1] for each in reversed(reached[: now + 1]) if each):
            reached[now].append(counts)
            most = max(most, sum(counts))
    if rollout.policy.strategy != "rolling":
        elsewhere = most - rollout.started_from - rollout.started_to
    return Course(
        minimum=minimum(rollout),
        stages=tuple(_step(rollout, *each) for each in zip(goals, reached, strict=True)),
        elsewhere=elsewhere,
        most=most,
        places=_places(rollout, new, elsewhere, most),
        stopped=stopped,
    )


def _step(rollout: Rollout, goal: StageGoal, counts: Sequence[tuple[int, int]]) -> SimulatedStage:
    return SimulatedStage(
        counts=tuple(counts),
        bake=goal.bake,
        approve=goal.approve,
        gates=tuple(gate.name for gate in goal.gates),
        after_switch=rollout.policy.keep_old if goal.switch else None,
    )


def _after(shot: Snapshot, plan: Plan, queue: Iterator[Place]) -> Snapshot | None:
    """The rollout after the step or the wait of its plan; None: it would wait forever."""
    if plan.turn is not None:
        return dataclasses.replace(shot, state=plan.turn.state)
    if plan.moves.moves:
        return _moved(shot, plan, queue)
    if shot.new is not None and shot.new.available < shot.new.placed:
        return dataclasses.replace(shot, new=Side(shot.new.rc, more=shot.new.placed))
    if shot.state is not None and shot.state.phase == "baking" and plan.after is not None:
        return dataclasses.replace(shot, now=shot.now + plan.after)
    return None


def _places(rollout: Rollout, new: ReplicationController, elsewhere: int, most: int) -> str:
    """Where the new pods stand, and what room they need for that."""
    nodes = f"{elsewhere} free node{'s' * (elsewhere > 1)} needed"
    if rollout.policy.beside:
        needs = "new pods may run beside old ones" if new.numbered else nodes
        return f"at most {most} pods: {needs}"
    if rollout.policy.strategy == "resourceutil":
        return f"at most {most} pods: old ones go first"
    if elsewhere > 1:
        return f"{elsewhere} pods need places on other nodes"
    return "1 pod needs a place on another node" if elsewhere else "in place, no free nodes needed"


def _decided(shot: Snapshot, unfit: frozenset[Place], round_: int) -> Plan:
    """The plan, with the answers of a scheduler that always has another node."""
    shot = dataclasses.replace(shot, unread=FACTS)
    found = planning.decide(shot)
    while isinstance(found, Ask):
        need: Need = found.need
        unread = shot.unread - {need.fact}
        if need.fact == "fit":
            shot = dataclasses.replace(shot, fit=frozenset(need.leaving) - unfit, unread=unread)
        else:
            places = tuple(Assignment(f"{round_}", str(number)) for number in range(need.count))
            shot = dataclasses.replace(shot, offer=Offer(places), unread=unread)
        found = planning.decide(shot)
    return found


def _moved(shot: Snapshot, plan: Plan, queue: Iterator[Place]) -> Snapshot:
    """The world after one transaction: pods that came are not available yet."""
    old, new = shot.sides
    stays, comes = dict(old.pods), dict(new.pods)
    for move in plan.moves.moves:
        if move.source is not None:
            (comes if move.way == "refill" else stays).pop(move.source)
        if move.target is not None:
            place = (move.target.node, move.target.instance)
            comes[place] = _pod(new.rc, seen=False)
    less, more = old.desired - plan.moves.removed, new.desired + plan.moves.added
    return dataclasses.replace(
        shot,
        old=_listed(
            Side(msgspec.structs.replace(old.rc, replicas_desired=less), stays, more=old.more), queue
        ),
        new=Side(msgspec.structs.replace(new.rc, replicas_desired=more), comes, more=new.more),
    )


def _listed(side: Side, queue: Iterator[Place]) -> Side:
    """The side with the next pods of the queue, as many as may leave at once."""
    missing = min(side.more, max(0, _LISTED - len(side.pods)))
    listed = dict.fromkeys(islice(queue, missing), _pod(side.rc, seen=True))
    return dataclasses.replace(side, pods={**side.pods, **listed}, more=side.more - missing)


def _pod(rc: ReplicationController, *, seen: bool) -> PodState:
    found = Glance(rc.manifest, rc.id, "running", 0.0, "passing", 1) if seen else None
    return PodState(
        Stored("", Pod(rc.manifest), 1, b""), Stored("", Intent(rc.manifest, rc.id), 1, b""), found
    )
