"""Sends alerts to PagerDuty as events of its Events API v2: trigger, acknowledge and resolve.

The deduplication key is the incident key, so a repeated trigger changes the incident that is open, and the
end of an incident resolves it, whichever farm sends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from alerting.alert import Alert
from alerting.sinks.posting import Message, Poster
from store.ports import Clock
from store.times import rfc3339

URL = "https://events.pagerduty.com/v2/enqueue"
CLIENT = "farmd"
MAX_DEDUP_KEY = 255
SEVERITIES = {"high": "critical", "low": "warning"}
# An event about an incident that PagerDuty does not know is lost: a trigger goes before an acknowledgement.
ACTIONS = {"firing": ("trigger",), "acknowledged": ("trigger", "acknowledge"), "resolved": ("resolve",)}


class PagerDutySink:
    """Sends to one service of PagerDuty, which the routing key of its integration names. ``routing_key`` is
    called for each attempt; ``source`` is the farm that tells.
    """

    name = "pagerduty"

    def __init__(
        self,
        poster: Poster,
        routing_key: Callable[[], bytes],
        source: str,
        clock: Clock,
        *,
        url: str = URL,
    ) -> None:
        self._poster, self._key, self._source = poster, routing_key, source
        self._clock, self._url = clock, url

    async def deliver(self, alert: Alert) -> None:
        """Send the events of one alert.

        Raises:
            DeliveryRefused: PagerDuty refused it.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        at = rfc3339(self._clock.now(), "milliseconds")
        for action in ACTIONS[alert.state]:
            await self._poster.post(lambda action=action: self._message(alert, action, at))  # type: ignore[misc]

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _message(self, alert: Alert, action: str, at: str) -> Message:
        key = self._key().decode(errors="replace")
        event: dict[str, Any] = {
            "routing_key": key,
            "event_action": action,
            "dedup_key": dedup_key(alert.incident_key),
        }
        if action == "trigger":
            links = [{"href": url, "text": name} for name, url in alert.links.items()]
            page = {"client_url": alert.links["page"]} if "page" in alert.links else {}
            event |= {"client": CLIENT, **page, "links": links, "payload": self._payload(alert, at)}
        return Message(self._url, msgspec.json.encode(event), hidden=(key,))

    def _payload(self, alert: Alert, at: str) -> dict[str, Any]:
        told = {"description": alert.description} if alert.description else {}
        return {
            "summary": alert.summary,
            "source": self._source,
            "severity": SEVERITIES[alert.urgency],
            "timestamp": at,
            "component": alert.item or CLIENT,
            "class": alert.name,
            "custom_details": {**alert.labels, **alert.details, **told},
        }


def dedup_key(incident_key: str) -> str:
    """The incident key, with its end hashed where it is longer than PagerDuty accepts."""
    if len(incident_key) <= MAX_DEDUP_KEY:
        return incident_key
    end = hashlib.sha256(incident_key.encode()).hexdigest()[:16]
    return f"{incident_key[: MAX_DEDUP_KEY - 17]}-{end}"
