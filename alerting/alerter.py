"""The protocols ``Alerter``, with which workers fire alerts (p2 ``pkg/alerting``), and ``Sink``.

``fire`` returns when the alert is queued and does not wait for its delivery: a slow or dead receiver
must not slow down a worker, and a worker cannot repair a receiver.
"""

from __future__ import annotations

from typing import Protocol

from alerting.alert import Alert


class Alerter(Protocol):
    """Fires and resolves alerts. A worker may repeat an alert: the incident key de-duplicates it."""

    async def fire(self, alert: Alert) -> None:
        """Queue an alert. Never raises for a delivery that fails later."""

    async def resolve(self, incident_key: str) -> None:
        """End an incident. Unknown keys are ignored, so that callers need not remember what they fired."""

    async def adopt(self, alert: Alert, *, anywhere: bool = False) -> None:
        """Treat an alert that another process fired as fired here. Sends nothing.

        ``anywhere``: it may have been fired with another urgency or other labels, so its end goes to all
        sinks.
        """

    async def forget(self, incident_key: str) -> None:
        """Drop an incident that another process took over: the next alert of it is new. Sends nothing."""

    def release(self, incident_key: str) -> None:
        """Stop keeping an incident alive that another process may have now. Its end may still follow."""

    def owes(self, incident_key: str) -> bool:
        """Whether the end of the incident is still to be delivered to a configured sink."""


class Sink(Protocol):
    """One receiver behind the router."""

    @property
    def name(self) -> str:
        """The sink's name in metrics and logs, from a closed set: one name a configured sink."""

    async def deliver(self, alert: Alert) -> None:
        """Deliver one firing or resolved alert, with the sink's own retries and time limits.

        Raises:
            DeliveryRefused: the receiver will never accept the alert.
            DeliveryFailed: the retries are used up.
        """

    async def close(self) -> None:
        """Free the sink's resources."""
