"""What people are alerted of while services are deployed, under ``deployment_<service>``.

High: it waits for a person after a failure. Low: it was rolled back, or made no progress for a quarter of an
hour. Who tells of a service that was rolled back is gone with its deployment; the next release of the service
ends that alert. All follow from the durable state, so a farm that takes over tells of them, too.
"""

from __future__ import annotations

from alerting.alert import Urgency
from farmd.deploy.cycle import BY_HAND, Cycle
from farmd.deploy.report import progress
from farmd.deploy.sights import Facts, ServiceFacts
from farmd.farm.alerts import Incidents
from farmd.work.context import Context
from store.services import ServiceStore

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
        """Called before the transaction that releases a service, after which nobody could tell."""
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
