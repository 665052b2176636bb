"""A deployment as people see it while it lasts: pure."""

from __future__ import annotations

from collections.abc import Mapping

from store.deployments import Deployment, DeploymentStatus, Goal, ServiceProgress


def services(record: Deployment, status: DeploymentStatus | None) -> dict[str, str]:
    """What is told of each service of a deployment, by name."""
    known: Mapping[str, ServiceProgress] = (
        {each.name: each for each in status.services} if status is not None else {}
    )
    return {goal.name: told(goal, known.get(goal.name)) for goal in record.goals}


def lines(record: Deployment, status: DeploymentStatus | None, state: str, reason: str) -> list[str]:
    """One line for itself, and one a service."""
    found = services(record, status)
    width = max(map(len, found), default=0)
    head = f"deployment {record.name}  {status.progress if status is not None else state}"
    why = [f"  {reason}"] if reason else []
    return [head, *(f"  {name:<{width}}  {text}" for name, text in found.items()), *why]


def told(goal: Goal, progress: ServiceProgress | None) -> str:
    """How far a service is."""
    if goal.superseded:
        return "taken over by another deployment"
    if progress is None:
        return "waiting"
    reason = f": {progress.reason}" if progress.reason else ""
    return f"{_state(goal, progress)}{reason}"


def _state(goal: Goal, progress: ServiceProgress) -> str:
    gone = (goal.previous if progress.back else goal.wanted) is None
    count = f"{progress.proven}/{progress.wanted} healthy"
    if progress.phase == "released":
        now = "removed" if gone else count
        return f"rolled back, {now}" if progress.back else now
    if progress.phase == "waiting":
        return "waiting"
    left = f", {progress.outdated} to {'remove' if gone else 'change'}" if progress.outdated else ""
    now = f"removing{left}" if gone else f"{count}{left}"
    return f"rolling back, {now}" if progress.back else now
