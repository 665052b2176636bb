"""What a deployment does next: pure. Each cycle plans anew from what stands, with the planner of the preview.

What must never break: as many pods stay healthy as were at the start, or as are wanted, less the pods that
are replaced where they stand, which are at most ``parallelism``; a service that turned back never turns
forward again; a freeze lets pods come and none go; and whoever plans next comes to the same end, because
nothing is remembered but which pods are the deployment's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farmd.deploy.decide_types import Condition, ServiceGoal, ServiceStep, Snapshot, Turn
from farmd.deploy.operations import (
    Operation,
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    RunPreDeployOperation,
    ServicePlan,
    StopContainerOperation,
)
from farmd.deploy.standing import ServicePod
from farmd.deploy.strategy import RollingStrategy
from scheduler.cluster import ClusterState
from scheduler.errors import NoMachine
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
        pauses = goal.back or (goal.spec is not None and goal.spec.update.on_failure == "pause")
        turn: Turn = "pause" if pauses else "back"
        return ServiceStep(service=name, turn=turn, reason=failure, failed=place, repairs=goal.altered)
    try:
        plan = _plan(goal, state)
    except NoMachine as error:
        return ServiceStep(service=name, repairs=goal.altered, reason=error.message, short=True)
    hooks = [each for each in plan if isinstance(each, RunPreDeployOperation)]
    if hooks and goal.hook != "done" and not goal.back:
        waiting = "its hook runs" if goal.hook == "running" else ""
        return ServiceStep(
            service=name, operations=() if waiting else tuple(hooks), repairs=goal.altered, reason=waiting
        )
    operations = _allowed(goal, [each for each in plan if each not in hooks])
    if operations or goal.altered:
        return ServiceStep(service=name, operations=operations, repairs=goal.altered, short=bool(plan.short))
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


def _plan(goal: ServiceGoal, state: ClusterState) -> ServicePlan:
    """What is left to do of this turn, if all went well."""
    if goal.wanted is None:
        gone = sorted(goal.service.containers, key=lambda pod: pod.place)
        removals = tuple(RemoveContainerOperation(goal.service.id, pod.place) for pod in gone)
        return ServicePlan(removals, goal.service.id, goal.service.name)
    strategy = RollingStrategy(force_recreate=goal.recreate and not goal.back)
    return strategy.plan(state, goal.service, goal.wanted, goal.machines)


def _allowed(goal: ServiceGoal, operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The part of a plan that may be done now."""
    pods = {pod.place: pod for pod in goal.service.containers}
    found: list[Operation] = []
    replacements = [each for each in operations if isinstance(each, ReplaceContainerOperation)]
    most = goal.wanted.update.parallelism if goal.wanted is not None else 1
    budget = 0 if goal.rests else most - goal.unproven
    lost = 0
    for each in replacements[: max(0, budget)]:
        if each.order == "start-first":
            found.append(RunContainerOperation(each.service_id, each.spec, each.place[0]))
        elif not goal.held:
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
    floor = min(goal.started, len(pods) - len(removals) + runs)
    available = sum(pod.available for pod in pods.values()) - lost
    found: list[Operation] = []
    for each in removals:
        costs = pods[each.place].available
        if not costs or available > floor:
            found.append(each)
            available -= costs
    return found
