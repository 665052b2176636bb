"""One incident, one message: decides whether an alert is news. Pure but for its memory.

A worker fires on every cycle that finds the trouble (p2 re-sent every 30 s and relied on the
receiver: W22). News is: a key not seen before, a rise in urgency, or a reminder once the re-send
interval is over. Only what was fired can be resolved. Memory is bounded; the incident that was
silent longest is forgotten first, which at worst repeats a message.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from alerting.alert import Alert
from store.ports import Clock


@dataclass(slots=True)
class _Incident:
    alert: Alert
    sent_at: float


class Deduplicator:
    """What one sink has been told. ``resend`` is seconds, ``capacity`` incidents."""

    def __init__(self, clock: Clock, *, resend: float = 3600.0, capacity: int = 10_000) -> None:
        self._clock = clock
        self._resend = resend
        self._capacity = capacity
        self._open: OrderedDict[str, _Incident] = OrderedDict()

    def is_news(self, alert: Alert) -> bool:
        """Whether to send a firing alert now; if so it is remembered as sent."""
        now = self._clock.mono()
        known = self._open.get(alert.incident_key)
        if known is not None:
            self._open.move_to_end(alert.incident_key)
            risen = alert.urgency == "high" and known.alert.urgency == "low"
            if not risen and now - known.sent_at < self._resend:
                return False
        self._remember(alert, now)
        return True

    def resolve(self, incident_key: str) -> Alert | None:
        """Forget an incident and return its end to be sent; None when it never fired."""
        known = self._open.pop(incident_key, None)
        return known.alert.resolved() if known is not None else None

    def adopt(self, alert: Alert) -> None:
        """Remember as sent what somebody else has sent, unless it is known."""
        if alert.incident_key not in self._open:
            self._remember(alert, self._clock.mono())

    def forget(self, incident_key: str) -> None:
        """Remember nothing of an incident."""
        self._open.pop(incident_key, None)

    def undo(self, alert: Alert) -> None:
        """A message may not have arrived: a firing one is news again, an end can be tried again.

        The incident stays open, because the message may have arrived all the same.
        """
        known = self._open.get(alert.incident_key)
        if known is None and alert.state == "resolved":
            self._remember(msgspec.structs.replace(alert, state="firing"), self._clock.mono())
        elif known is not None and known.alert is alert:
            known.sent_at = float("-inf")

    def open(self) -> int:
        """How many incidents are open."""
        return len(self._open)

    def _remember(self, alert: Alert, now: float) -> None:
        self._open[alert.incident_key] = _Incident(alert, now)
        self._open.move_to_end(alert.incident_key)
        while len(self._open) > self._capacity:
            self._open.popitem(last=False)
