"""An alert: a message for people, with an incident key that joins its firing, repeats and end.

Alerts with the same incident key are one incident. p2's keys are kept where they exist: the id of a
replication controller, ``no_rcs_found`` and ``preemptive_ds_contention``.
An alert never carries a manifest, an environment or a token, because it is sent to other systems.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from alerting.errors import AlertInvalid

Urgency = Literal["high", "low"]
State = Literal["firing", "acknowledged", "resolved"]

# The kind of a freeze, which stops several kinds of work.
FREEZE = "failsafe"
PREEMPTIVE_DS_CONTENTION = "preemptive_ds_contention"

MAX_SUMMARY = 1024
MAX_KEY = 256
MAX_DESCRIPTION = 16 * 1024


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert. ``summary`` is one line, ``description`` the long text, ``details`` are for machines, and
    ``labels``, by which alerts are routed, are those of the ``item`` that it is about, such as ``rc/web``.

    ``path`` is the item's on the page. ``links`` are addresses for people, by what they lead to. ``since`` is
    when the incident began (seconds since the epoch); 0 before an outbox knows it.

    ``urgency`` high must be read at once; low can wait for the morning. Summary and incident key are
    mandatory.

    Raises:
        AlertInvalid: on construction, naming the field.
    """

    summary: str
    incident_key: str
    description: str = ""
    urgency: Urgency = "low"
    details: dict[str, str] = {}
    labels: dict[str, str] = {}
    state: State = "firing"
    item: str = ""
    path: str = ""
    links: dict[str, str] = {}
    since: float = 0.0

    def __post_init__(self) -> None:
        for field, found, limit in (
            ("summary", self.summary, MAX_SUMMARY),
            ("incident_key", self.incident_key, MAX_KEY),
        ):
            if not found.strip() or "\n" in found or len(found) > limit:
                raise AlertInvalid(
                    f"alert.{field}: found {found[:80]!r}, expected one line of 1 to {limit} characters",
                    field=field,
                )
        if len(self.description) > MAX_DESCRIPTION:
            raise AlertInvalid(
                f"alert.description: found {len(self.description)} characters, "
                f"expected at most {MAX_DESCRIPTION}",
                field="description",
            )
        if self.urgency not in ("high", "low"):
            raise AlertInvalid(
                f"alert.urgency: found {self.urgency!r}, expected 'high' or 'low'", field="urgency"
            )

    @property
    def name(self) -> str:
        """The name of all incidents of one sort, such as ``FarmdNodeLost``: the key without the id at its
        end.
        """
        if self.labels.get("kind") == FREEZE:
            return "FarmdFrozen"
        words = self.incident_key.split("_")[:-1] or ["no", "place"]
        return "Farmd" + "".join(map(str.capitalize, words))

    def resolved(self) -> Alert:
        """The alert that ends this incident."""
        return msgspec.structs.replace(self, state="resolved")


def one_line(text: str) -> str:
    """A text as a summary: on one line, and cut where it is too long."""
    return " ".join(text.split())[:MAX_SUMMARY]


# The protocols ``Alerter``, with which workers fire alerts (p2 ``pkg/alerting``), and ``Sink``.
#
# ``fire`` returns when the alert is queued and does not wait for its delivery: a slow or dead receiver
# must not slow down a worker, and a worker cannot repair a receiver.


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
