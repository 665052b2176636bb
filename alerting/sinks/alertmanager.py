"""Posts alerts to Prometheus' Alertmanager (API v2), which groups, silences and routes them further.

Alertmanager forgets an alert that is not sent again: each one carries the time when it ends by itself, and
the channel of this sink sends it again before (``KEEP_SECONDS``). So what a dead process told ends, too. The
labels are the alert's identity. A severity that changes makes another alert, so an end goes out under both.
Without the time when it began, Alertmanager takes the end for that, and the alert is never older than now.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from alerting.alert import Alert, Urgency
from alerting.sinks.posting import Message, Poster
from store.ports import Clock
from store.times import rfc3339

KEEP_SECONDS = 60.0
# As long as Alertmanager's own default; several messages may be lost before an alert ends by mistake.
LASTS_SECONDS = 300.0
# What Prometheus' own alerts call it.
ANNOTATIONS = {"runbook": "runbook_url"}
SEVERITIES: dict[Urgency, str] = {"high": "critical", "low": "warning"}


class AlertmanagerSink:
    """Sends to one Alertmanager; ``url`` is its address, ``source`` the farm that tells."""

    name = "alertmanager"

    def __init__(self, poster: Poster, url: str, source: str, clock: Clock) -> None:
        self._poster, self._source, self._clock = poster, source, clock
        self._url = f"{url.rstrip('/')}/api/v2/alerts"

    async def deliver(self, alert: Alert) -> None:
        """Post one alert.

        Raises:
            DeliveryRefused: Alertmanager refused it.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        await self._poster.post(lambda: Message(self._url, msgspec.json.encode(self._alerts(alert))))

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _alerts(self, alert: Alert) -> list[dict[str, Any]]:
        now = self._clock.now()
        if alert.state == "resolved":
            return [self._alert(alert, urgency, now, now) for urgency in SEVERITIES]
        return [self._alert(alert, alert.urgency, now, now + LASTS_SECONDS)]

    def _alert(self, alert: Alert, urgency: Urgency, now: float, ends: float) -> dict[str, Any]:
        own = {"alertname": alert.name, "incident_key": alert.incident_key, "severity": SEVERITIES[urgency]}
        if alert.item:
            own["item"] = alert.item
        labels = {label(name): text for name, text in alert.labels.items() if text} | own
        links = {ANNOTATIONS.get(name, name): url for name, url in alert.links.items()}
        told = {"summary": alert.summary, "description": alert.description, "farm": self._source}
        annotations = {label(name): text for name, text in {**alert.details, **links, **told}.items() if text}
        return {
            "labels": labels,
            "annotations": annotations,
            "startsAt": rfc3339(min(alert.since or now, ends), "milliseconds"),
            "endsAt": rfc3339(ends, "milliseconds"),
            "generatorURL": alert.links.get("page", ""),
        }


def label(name: str) -> str:
    """A name as Alertmanager accepts it."""
    text = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return text if re.match(r"[a-zA-Z_]", text) else f"_{text}"
