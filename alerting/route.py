"""Which alerts a sink gets: by their urgency, and by the labels of what they are about."""

from __future__ import annotations

from dataclasses import dataclass

from alerting.alert import Alert, Urgency
from alerting.alerter import Sink
from store.selectors import Selector, parse

EVERYTHING = parse("")


@dataclass(frozen=True, slots=True)
class Route:
    """One sink and the alerts that it gets: of these urgencies, with labels that match the selector.

    ``receiver`` identifies its receiver across exchanges. ``keep``: see ``Outbox``.
    """

    sink: Sink
    urgencies: frozenset[Urgency] = frozenset({"high", "low"})
    receiver: str = ""
    selector: Selector = EVERYTHING
    keep: float = 0.0

    def takes(self, alert: Alert) -> bool:
        """Whether the sink gets the alert."""
        return alert.urgency in self.urgencies and self.selector.matches(alert.labels)
