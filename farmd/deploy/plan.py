"""What a deployment does next: pure. Each cycle plans from the present state, with the planner of the
preview.

What must never break: as many pods stay healthy as were at the start, or as are wanted, less the pods that
are replaced where they stand, which are at most ``parallelism``; a service that turned back never turns
forward again; a freeze lets pods come and none go; and whoever plans next comes to the same end, because
nothing is remembered but which pods are the deployment's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from farmd.deploy.facts import Condition, Facts, ServiceFacts, ServiceGoal, ServiceStep, Snapshot, Turn
from farmd.deploy.operations import (
    CreateVolumeOperation,
    Operation,
    Plan,
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    RunPreDeployOperation,
    ServicePod,
    StopContainerOperation,
)
from farmd.deploy.project import fingerprint
from farmd.deploy.strategy import RollingStrategy
from farmd.runtime.wake import earliest
from farmd.work.model import Blocked, frozen
from scheduler.cluster import ClusterState
from scheduler.errors import NoMachine
from store.deployments import Ending, reasons
from store.pods import Place

AT_ONCE = 8
UNPROVEN = 50


def decide(shot: Snapshot) -> tuple[ServiceStep, ...]:
    """One step for each service that is not over; at most eight of them go on, the others wait."""
    goals = {goal.service.name: goal for goal in shot.goals}
    steps: list[ServiceStep] = []
    active = 0
    for goal in shot.goals:
        if goal.released:
            continue
        # Dependencies order the way forward alone: a service goes back at once.
        waits = _waits(goal, goals, shot.met) if not goal.back else ""
        if not waits and active == AT_ONCE:
            waits = f"waits until fewer than {AT_ONCE} services change"
        active += not waits
        name = goal.service.name
        if waits is None:
            steps.append(ServiceStep(service=name, turn="skip", reason="what it depends on was rolled back"))
        elif shot.paused:
            steps.append(ServiceStep(service=name, repairs=goal.altered, reason="paused"))
        else:
            steps.append(ServiceStep(service=name, reason=waits) if waits else _step(goal, shot.state))
    return tuple(steps)


def _waits(
    goal: ServiceGoal, goals: Mapping[str, ServiceGoal], met: frozenset[tuple[str, Condition]]
) -> str | None:
    """What a goal that has not begun waits for; None: it will never come."""
    # What has begun does not wait again if a service that it depends on fails later.
    if goal.taken or any(pod.mine for pod in goal.service.containers):
        return ""
    for name, condition in sorted(goal.after.items()):
        other = goals.get(name)
        if other is None:
            if (name, condition) not in met:
                return f"waits until {name} is {condition}"
        elif other.back:
            return None
        elif not _is(other, condition):
            return f"waits until {name} is {condition}"
    return ""


def _is(goal: ServiceGoal, condition: Condition) -> bool:
    pods = goal.service.containers
    if condition == "started":
        return goal.released or (
            bool(pods) and all(pod.running for pod in pods if pod.mine) and goal.hook != "running"
        )
    if condition == "healthy":
        return goal.released
    return bool(pods) and all(pod.done and pod.proven for pod in pods)


def _step(goal: ServiceGoal, state: ClusterState) -> ServiceStep:
    name = goal.service.name
    failure, place = _failure(goal)
    if failure:
        # From the way back there is no other way, so a person decides.
        pauses = goal.back or (goal.spec is not None and goal.spec.update.on_failure == "pause")
        turn: Turn = "pause" if pauses else "back"
        return ServiceStep(service=name, turn=turn, reason=failure, failed=place, repairs=goal.altered)
    try:
        plan = _plan(goal, state)
    except NoMachine as error:  # no failure: a machine may get room
        return ServiceStep(service=name, repairs=goal.altered, reason=error.message, short=True)
    # The hook runs before any pod of the new version. The version before had its own, so no hook runs back.
    hooks = [each for each in plan if isinstance(each, RunPreDeployOperation)]
    if hooks and goal.hook != "done" and not goal.back:
        waiting = "its hook runs" if goal.hook == "running" else ""
        return ServiceStep(
            service=name, operations=() if waiting else tuple(hooks), repairs=goal.altered, reason=waiting
        )
    operations = _allowed(goal, [each for each in plan if each not in hooks])
    if operations or goal.altered:
        return ServiceStep(service=name, operations=operations, repairs=goal.altered, short=bool(plan.short))
    # Something is left to do, and nothing of it is allowed now.
    if len(plan) > len(hooks) or plan.short:
        reason = "; ".join(plan.short) or _unproven(goal)
        return ServiceStep(service=name, reason=reason, short=bool(plan.short))
    if goal.unproven:
        return ServiceStep(service=name, reason=_unproven(goal))
    return ServiceStep(service=name, turn="release")


def _unproven(goal: ServiceGoal) -> str:
    """What a service waits for, with the first pod that its agent does not start."""
    waits = "waits until its new pods have proven themselves"
    refused = next((pod for pod in goal.service.containers if pod.mine and pod.refused), None)
    return f"{waits}; {'/'.join(refused.place)}: {refused.refused}" if refused else waits


def _failure(goal: ServiceGoal) -> tuple[str, Place | None]:
    """Why this turn fails, and because of which pod; empty if it does not."""
    if goal.hook == "failed" and not goal.back:
        return f"its hook failed: {goal.hook_failure}", goal.hook_place
    failed = next((pod for pod in goal.service.containers if pod.mine and pod.failed), None)
    return (f"{'/'.join(failed.place)}: {failed.failed}", failed.place) if failed else ("", None)


def _plan(goal: ServiceGoal, state: ClusterState) -> Plan:
    """What is left to do of this turn, if all went well."""
    if goal.wanted is None:
        gone = sorted(goal.service.containers, key=lambda pod: pod.place)
        removals = tuple(RemoveContainerOperation(goal.service.id, pod.place) for pod in gone)
        return Plan(removals, goal.service.id, goal.service.name)
    strategy = RollingStrategy(force_recreate=goal.recreate and not goal.back)
    return strategy.plan(state, goal.service, goal.wanted, goal.machines)


def _allowed(goal: ServiceGoal, operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The part of a plan that may be done now."""
    pods = {pod.place: pod for pod in goal.service.containers}
    found: list[Operation] = []
    replacements = [each for each in operations if isinstance(each, ReplaceContainerOperation)]
    most = goal.wanted.update.parallelism if goal.wanted is not None else 1
    # Unproven pods count, so that a bad version reaches at most ``parallelism`` pods.
    budget = 0 if goal.rests else most - goal.unproven
    lost = 0
    for each in replacements[: max(0, budget)]:
        if each.order == "start-first":  # the old pod is removed in a later cycle, within the floor
            found.append(RunContainerOperation(each.service_id, each.spec, each.place[0]))
        elif not goal.held:  # a freeze lets no pod go, and this one goes before the new one starts (R18)
            stops = [
                other
                for other in operations
                if isinstance(other, StopContainerOperation) and other.place[0] == each.place[0]
            ]
            found += [*stops, each]
            lost += sum(pods[place].available for place in [each.place, *(other.place for other in stops)])
    runs = [each for each in operations if isinstance(each, RunContainerOperation)]
    if not replacements:
        found += runs[: max(0, UNPROVEN - goal.unproven)]
    if not goal.held:
        found += _leaving(goal, operations, pods, lost)
    return tuple(found)


def _leaving(
    goal: ServiceGoal, operations: Sequence[Operation], pods: Mapping[Place, ServicePod], lost: int
) -> list[Operation]:
    """The pods that may go without falling below the floor."""
    removals = [each for each in operations if isinstance(each, RemoveContainerOperation)]
    runs = sum(isinstance(each, RunContainerOperation) for each in operations)
    # What was healthy at the start, or what will be left if that is less: the service may shrink.
    floor = min(goal.started, len(pods) - len(removals) + runs)
    available = sum(pod.available for pod in pods.values()) - lost
    found: list[Operation] = []
    for each in removals:
        costs = pods[each.place].available
        if not costs or available > floor:
            found.append(each)
            available -= costs
    return found


# What the worker of a deployment does in one cycle: pure, around ``decide``.

DRAFT_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 5.0
VOLUMES_AT_ONCE = 20
BY_HAND = "it was rolled back by hand"

Action = Literal["", "begin", "volumes", "steps", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle. ``steps`` are those with something to do, ``told`` all of them, for the status.

    ``ending``: how it ends, and ``why``; ``failed`` are the places of the pods because of which.
    """

    action: Action = ""
    steps: tuple[ServiceStep, ...] = ()
    told: tuple[ServiceStep, ...] = ()
    volumes: tuple[CreateVolumeOperation, ...] = ()
    ending: Ending = "done"
    why: str = ""
    failed: tuple[str, ...] = ()
    blocked: Blocked | None = None
    after: float | None = None
    ends: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not self.action


def next_cycle(reading: Facts) -> Cycle:
    """What is to be done now."""
    record, state = reading.stored.record, reading.state
    if record.draft:  # its submit still joins services, or died on the way
        if reading.idle >= DRAFT_SECONDS:
            return Cycle(action="end", ending="abandoned", why="its submit was never completed")
        return Cycle(after=DRAFT_SECONDS - reading.idle)
    if not state.begun:
        return _beginning(reading)
    if all(sight.over for sight in reading.sights.values()) and not any(_returns(reading)):
        return _ending(reading)
    if reading.planned is not None and reading.planned.volumes and not reading.paused:
        return Cycle(action="volumes", volumes=reading.planned.volumes[:VOLUMES_AT_ONCE])
    return _steps(reading)


def _beginning(reading: Facts) -> Cycle:
    record = reading.stored.record
    if record.ask == "rollback":
        return Cycle(action="end", ending="reverted", why="rolled back before it began")
    if record.ask == "pause":
        return Cycle(blocked=Blocked("paused", "paused", wanted=True))
    # A fingerprint is that of the plan that a person saw: no other plan may be carried out in its place.
    if reading.unplanned and record.fingerprint:
        return Cycle(action="end", ending="stale", why=reading.unplanned)
    if reading.unplanned:
        return Cycle(blocked=Blocked("no_plan", reading.unplanned), after=LOOK_AGAIN_SECONDS)
    if (
        record.fingerprint
        and reading.planned is not None
        and fingerprint(reading.planned) != record.fingerprint
    ):
        return Cycle(action="end", ending="stale", why="what is running has changed since it was planned")
    return Cycle(action="begin")


def _ending(reading: Facts) -> Cycle:
    sights = reading.sights.items()
    back = {name: sight.state for name, sight in sights if sight.state is not None and sight.state.back}
    failed = [(name, state.failure) for name, state in back.items()]
    failed += [
        (name, f"taken over by deployment {sight.said.superseded}")
        for name, sight in sights
        if sight.said.superseded
    ]
    return Cycle(
        action="end",
        ending="reverted" if failed else "done",
        why="; ".join(reasons(failed)),
        failed=tuple(state.failed for state in back.values() if state.failed),
    )


def _steps(reading: Facts) -> Cycle:
    assert reading.shot is not None
    steps = tuple(_asked(reading, step) for step in _decided(reading))
    due = tuple(step for step in steps if _does(reading.sights[step.service], step))
    waiting = {name for sight in reading.sights.values() if sight.state is None for name in sight.said.after}
    # No watch of this deployment tells of services outside of it.
    waits = LOOK_AGAIN_SECONDS if waiting - reading.sights.keys() else None
    return Cycle(
        action="steps" if due else "",
        steps=due,
        told=steps,
        blocked=_blocked(reading),
        after=earliest(reading.after, waits),
    )


def _decided(reading: Facts) -> tuple[ServiceStep, ...]:
    """The step of each service. A person's command comes before the state of the pods."""
    assert reading.shot is not None
    record = reading.stored.record
    if record.ask == "rollback" and (found := (*_turned(reading, BY_HAND), *_returns(reading))):
        return found
    if not record.atomic or reading.paused:
        return decide(reading.shot)
    failed = [name for name, sight in reading.sights.items() if sight.goal.back]
    if failed and (found := tuple(_turned(reading, f"{failed[0]} failed, and all go together"))):
        return found
    return _together(reading.shot)


def _turned(reading: Facts, why: str) -> Iterator[ServiceStep]:
    """All services that go forward turn back."""
    for sight in reading.sights.values():
        if not (sight.over or sight.goal.back):
            yield ServiceStep(
                service=sight.said.name, turn="skip" if sight.state is None else "back", reason=why
            )


def _returns(reading: Facts) -> Iterator[ServiceStep]:
    """Services that were released already and are to become what they were, because a person said so."""
    if reading.stored.record.ask != "rollback":
        return
    for sight in reading.sights.values():
        released = sight.over and sight.owner is not None and not sight.said.superseded
        if released and not sight.goal.back:
            yield ServiceStep(service=sight.said.name, turn="back", reason=BY_HAND)


def _together(shot: Snapshot) -> tuple[ServiceStep, ...]:
    """The steps where services are released all at once: those that could be wait for the others."""
    ready: list[ServiceStep] = []
    while True:
        steps = decide(shot)
        found = {step.service for step in steps if step.turn == "release"}
        ready += [step for step in steps if step.turn == "release"]
        if not found:
            break
        goals = [replace(each, released=each.released or each.service.name in found) for each in shot.goals]
        shot = replace(shot, goals=goals)
    if all(goal.released for goal in shot.goals):
        return tuple(ready)
    waiting = [replace(step, turn="", reason="waits for the other services") for step in ready]
    return (*steps, *waiting)


def _asked(reading: Facts, step: ServiceStep) -> ServiceStep:
    sight = reading.sights[step.service]
    if sight.leftover and sight.state is not None and not reading.paused:
        if sight.goal.held:  # nothing goes in a freeze (R18), so the service is not released before it
            waits = step.turn == "release"
            return replace(step, turn="", reason="a pod of its hook is left") if waits else step
        gone = tuple(RemoveContainerOperation(sight.said.service, place) for place in sight.leftover)
        return ServiceStep(service=step.service, operations=gone, repairs=step.repairs)
    if sight.busy and sight.state is not None:
        return replace(step, operations=(), turn="", reason=sight.busy)
    return step


def _does(sight: ServiceFacts, step: ServiceStep) -> bool:
    """Whether a step changes anything; before its service is taken only what leads to that does."""
    if sight.state is None:
        return bool(step.operations) or step.turn in ("skip", "release")
    return bool(step.operations or step.repairs or step.turn)


def _blocked(reading: Facts) -> Blocked | None:
    if reading.state.halted and reading.paused and reading.stored.record.ask != "pause":
        return Blocked("halted", reading.state.halted)
    if reading.paused:
        return Blocked("paused", "paused", wanted=True)
    if reading.frozen is not None:
        return frozen(reading.frozen)
    busy = [sight.busy for sight in reading.sights.values() if sight.busy]
    return Blocked("busy", busy[0]) if busy else None
