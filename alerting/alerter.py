"""The ``Alerter`` protocol: how workers tell humans (p2 ``pkg/alerting``), and how sinks carry it on.

Firing returns once the alert is accepted, never once it is delivered: a slow or dead receiver must
not slow down a worker, and a worker cannot do anything about it anyway.
"""

from __future__ import annotations

from typing import Protocol

from alerting.alert import Alert


class Alerter(Protocol):
    """What workers get. Repeating an alert is free: it is de-duplicated by its incident key."""

    async def fire(self, alert: Alert) -> None:
        """Tell somebody. Never raises for a delivery that fails later."""

    async def resolve(self, incident_key: str) -> None:
        """The incident is over; unknown keys are ignored, so that callers need not remember."""

    async def adopt(self, alert: Alert) -> None:
        """Another process fired this and is gone: from now on it counts as fired here. Tells nobody."""

    async def forget(self, incident_key: str) -> None:
        """What was fired under this key is another process's by now: the next one is news. Tells nobody."""

    def owes(self, incident_key: str) -> bool:
        """Whether somebody who heard of the incident must still be told that it is over."""


class Sink(Protocol):
    """One receiver behind the router."""

    @property
    def name(self) -> str:
        """Name in metrics and logs, from a closed set: one a configured sink."""

    async def deliver(self, alert: Alert) -> None:
        """Deliver one firing or resolved alert, with the sink's own retries and time limits.

        Raises:
            DeliveryRefused: it will never be accepted.
            DeliveryFailed: the retries are used up.
        """

    async def close(self) -> None:
        """Free what the sink holds."""
