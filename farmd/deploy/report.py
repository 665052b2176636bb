"""What people are told of a deployment: its status, and the words of its audit records: pure."""

from __future__ import annotations

from farmd.deploy.cycle import Cycle
from farmd.deploy.sights import Facts, ServiceFacts
from store.deployments import DeploymentStatus, ServiceProgress, reasons


def status(reading: Facts, plan: Cycle, farm: str, since: float) -> DeploymentStatus:
    """Where it is, and each service in numbers. ``since``: when a new status begins."""
    blocked = plan.blocked
    kind = "progressing" if blocked is None else "frozen" if blocked.frozen else "blocked"
    waits = {step.service: step.reason for step in plan.told}
    services = tuple(progress(sight, waits.get(name, "")) for name, sight in reading.sights.items())
    waiting = reasons((each.name, each.reason) for each in services if each.phase != "released")
    return DeploymentStatus(
        state=kind,
        reason=blocked.text if blocked is not None else "; ".join(waiting[:3]),
        farm=farm,
        since=since,
        phase=phase(reading),
        services=services,
    )


def phase(reading: Facts) -> str:
    """One word for where it is."""
    if reading.stored.record.draft:
        return "draft"
    if not reading.state.begun:
        return "pending"
    if reading.paused:
        return "halted" if reading.state.halted and reading.stored.record.ask != "pause" else "paused"
    return "back" if any(sight.goal.back for sight in reading.sights.values()) else "rolling"


def progress(sight: ServiceFacts, waits: str) -> ServiceProgress:
    """One service in numbers; ``waits``: for what."""
    state, pods = sight.state, sight.goal.service.containers
    if sight.said.superseded:
        where, waits = "superseded", f"taken over by deployment {sight.said.superseded}"
    elif state is None:
        where = "waiting"
    else:
        where = "rolling" if state.phase == "taken" else state.phase
    failure = state.failure if state is not None else ""
    return ServiceProgress(
        name=sight.said.name,
        phase=where,
        back=state is not None and state.back,
        wanted=_wanted(sight),
        placed=sum(_fits(sight, place) for place in sight.pods),
        proven=sum(pod.available and _fits(sight, pod.place) for pod in pods),
        outdated=sum(not _fits(sight, place) for place in sight.pods),
        reason="; ".join(part for part in (failure, waits) if part),
    )


def _fits(sight: ServiceFacts, place: tuple[str, str]) -> bool:
    return sight.version is not None and sight.pods[place].pod.record.manifest == sight.version.manifest


def _wanted(sight: ServiceFacts) -> int:
    if sight.version is None:
        return 0
    return len(sight.pods) if sight.version.mode == "global" else sight.version.replicas
