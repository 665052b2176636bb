"""Posts alerts as signed JSON to an HTTP address.

The body is version 1 of a format that receivers rely on: fields are added, never renamed. Every attempt is
signed anew.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from alerting.alert import Alert
from alerting.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from alerting.sinks.posting import Message, Poster
from store.ports import Clock
from store.times import rfc3339


class WebhookBody(msgspec.Struct, frozen=True, omit_defaults=False):
    """The body of the request. ``at`` is when it was sent and ``since`` when the incident began, as RFC
    3339; ``since`` is empty where that is not known.
    """

    version: int
    state: str
    incident_key: str
    summary: str
    description: str
    urgency: str
    details: dict[str, str]
    at: str
    labels: dict[str, str]
    name: str
    item: str
    since: str
    links: dict[str, str]


class WebhookSink:
    """Sends to one address. ``secret`` is called for each attempt; an empty one means that the request is not
    signed.
    """

    name = "webhook"

    def __init__(
        self, poster: Poster, url: str, clock: Clock, *, secret: Callable[[], bytes] = bytes
    ) -> None:
        self._poster, self._url, self._clock, self._secret = poster, url, clock, secret

    async def deliver(self, alert: Alert) -> None:
        """Post until the receiver accepts or refuses, or the attempts are used up.

        Raises:
            DeliveryRefused: the receiver refused.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        await self._poster.post(lambda: self._message(alert))

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _message(self, alert: Alert) -> Message:
        now, secret = self._clock.now(), self._secret()
        body = msgspec.json.encode(
            WebhookBody(
                1,
                alert.state,
                alert.incident_key,
                alert.summary,
                alert.description,
                alert.urgency,
                alert.details,
                rfc3339(now, "milliseconds"),
                alert.labels,
                alert.name,
                alert.item,
                rfc3339(alert.since, "milliseconds") if alert.since else "",
                alert.links,
            )
        )
        headers = {TIMESTAMP_HEADER: str(int(now))}
        if secret:
            headers[SIGNATURE_HEADER] = sign(secret, int(now), body)
        return Message(self._url, body, headers, (self._url, secret.decode(errors="replace")))
