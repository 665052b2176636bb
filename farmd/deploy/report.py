"""What people are told of a deployment: its status, audit records and alerts: pure."""

from __future__ import annotations

from alerting.alert import Urgency
from farmd.deploy.facts import Facts, ServiceFacts
from farmd.deploy.plan import BY_HAND, Cycle
from farmd.farm.alerts import Incidents
from farmd.work.context import Context
from store.deployments import DeploymentStatus, ServiceProgress, reasons
from store.services import ServiceStore

# What people are told of a deployment: its status, and the words of its audit records: pure.


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


# What people are alerted of while services are deployed, under ``deployment_<service>``.
#
# High: it waits for a person after a failure. Low: it was rolled back, or made no progress for a quarter of
# an hour. Who tells of a service that was rolled back is gone with its deployment; the next release of the
# service ends that alert. All follow from the durable state, so a farm that takes over tells of them, too.

STILL_SECONDS = 900.0


def alert_key(service: str) -> str:
    """The incident key of a service's deployments."""
    return f"deployment_{service}"


class DeploymentAlerts:
    """The alerts of one deployment under one claim."""

    def __init__(self, incidents: Incidents, context: Context) -> None:
        self._incidents, self._context = incidents, context
        self._seen: tuple[object, float] | None = None

    async def tell(self, reading: Facts, plan: Cycle) -> float | None:
        """Fire and end what is due; the seconds until another alert is."""
        still = self._still(reading, plan)
        halted = reading.state.halted if reading.paused and reading.stored.record.ask != "pause" else ""
        for name, sight in reading.sights.items():
            if sight.over:
                continue
            if halted.startswith(f"{name}: "):
                await self._tell(reading, name, f"waits for a person: {halted}", "high")
            elif still >= STILL_SECONDS and not reading.paused:
                why = next((step.reason for step in plan.told if step.service == name), "")
                await self._tell(reading, name, f"no progress for 15 minutes: {why}", "low")
            else:
                await self._incidents.end(alert_key(name), "high")
        return None if reading.paused or not reading.sights else max(1.0, STILL_SECONDS - still)

    def _still(self, reading: Facts, plan: Cycle) -> float:
        """For how long nothing has come nearer, as this claim saw it."""
        now = self._context.clock.mono()
        known = tuple(progress(sight, "") for sight in reading.sights.values()), reading.paused
        if self._seen is None or self._seen[0] != known or plan.action:
            self._seen = known, now
        return now - self._seen[1]

    async def released(self, reading: Facts, sight: ServiceFacts) -> None:
        """Report a service before it is released; after that the deployment no longer knows it."""
        assert sight.state is not None
        key = alert_key(sight.said.name)
        if sight.state.back:
            if sight.state.failure != BY_HAND:
                await self._tell(reading, sight.said.name, f"was rolled back: {sight.state.failure}", "low")
                self._incidents.pass_on(key)
            return
        services = ServiceStore(self._context.client, self._context.keys)
        before = (await services.get(sight.said.service)).record.history[:1]
        if any(each.result == "reverted" for each in before):
            self._incidents.inherit(key)
        await self._incidents.end(key)

    async def _tell(self, reading: Facts, service: str, text: str, urgency: Urgency) -> None:
        summary = f"deployment of service {service}: {text}"
        details = {"deployment_id": reading.stored.record.id, "service": service, "farm": self._context.farm}
        await self._incidents.say(alert_key(service), summary, details, urgency)
