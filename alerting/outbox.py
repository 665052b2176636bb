"""The messages that one sink must still get: of each incident its beginning, reminders and its end. No I/O.

A worker fires an alert in every cycle in which the trouble stands (p2 re-sent every 30 s and relied on the
receiver: W22). An alert is sent if its key is new, if its urgency rose, or if the re-send interval is over.
Only a fired incident can be resolved. A failed delivery is repeated without limit, with growing pauses. The
messages of one incident keep their order; a message that a later one replaces is left out. The number of
incidents is bounded: the one whose last alert is oldest is forgotten first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from alerting.alert import Alert
from store.ports import Clock

FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0


@dataclass(slots=True)
class Incident:
    """``begins`` and ``ends``: the sink must still get the beginning or end; ``due`` is the earliest time.

    ``heard``: the sink may have got the beginning; ``sending``: a message is under way.
    """

    alert: Alert
    begins: bool
    ends: bool = False
    heard: bool = False
    sending: bool = False
    told_at: float = -math.inf
    failures: int = 0
    refused: bool = False
    due: float = -math.inf

    def message(self) -> Alert:
        """The message to send next."""
        return self.alert if self.begins else self.alert.resolved()


class Outbox:
    """The incidents of one sink. ``resend`` is in seconds, ``capacity`` a number of incidents."""

    def __init__(self, clock: Clock, *, resend: float = 3600.0, capacity: int = 10_000) -> None:
        self._clock = clock
        self._resend = resend
        self._capacity = capacity
        self._incidents: OrderedDict[str, Incident] = OrderedDict()
        self._due: dict[str, Incident] = {}

    def __len__(self) -> int:
        return len(self._incidents)

    def fire(self, alert: Alert) -> bool:
        """Take a firing alert; False if the sink has it already, or will get it without a change."""
        key = alert.incident_key
        known = self._incidents.get(key)
        if known is None:
            self._incidents[key] = self._due[key] = Incident(alert, begins=True)
            return True
        self._incidents.move_to_end(key)
        if _risen(known.alert, alert):
            known.due = -math.inf
        elif not known.ends and (known.begins or self._clock.mono() - known.told_at < self._resend):
            return False
        known.alert, known.begins, known.ends = alert, True, False
        self._due.setdefault(key, known)
        return True

    def resolve(self, incident_key: str) -> None:
        """End an incident; an incident that never fired is ignored."""
        known = self._incidents.get(incident_key)
        if known is None:
            return
        known.ends = True
        if known.failures == 0 and not known.heard and not known.sending:
            return  # no delivery was tried yet: the sink gets the beginning, then the end
        known.begins = False
        self._due.setdefault(incident_key, known)
        self._spare(known)

    def _spare(self, incident: Incident) -> None:
        """Forget an incident that is over and whose beginning the sink refused: it needs no end."""
        if incident.ends and not incident.heard and not incident.sending:
            self.forget(incident.alert.incident_key)

    def adopt(self, alert: Alert) -> None:
        """Remember an alert that another process delivered as delivered, unless the incident is known."""
        if alert.incident_key not in self._incidents:
            self._incidents[alert.incident_key] = Incident(
                alert, begins=False, heard=True, told_at=self._clock.mono()
            )

    def forget(self, incident_key: str) -> None:
        """Forget an incident; nothing is sent."""
        self._incidents.pop(incident_key, None)
        self._due.pop(incident_key, None)

    def overflow(self) -> Alert | None:
        """Forget one incident if there are too many, and return it."""
        if len(self._incidents) <= self._capacity:
            return None
        known = self._incidents[next(iter(self._incidents))]
        self.forget(known.alert.incident_key)
        return known.alert

    def take(self) -> Incident | None:
        """The incident whose message is to be sent now, the longest due first; None if none is due."""
        now = self._clock.mono()
        found = next((incident for incident in self._due.values() if incident.due <= now), None)
        if found is not None:
            found.sending = True
        return found

    def wait(self) -> float:
        """Seconds until a message is due; infinity if there is none."""
        return min((incident.due for incident in self._due.values()), default=math.inf) - self._clock.mono()

    def delivered(self, incident: Incident, message: Alert) -> None:
        """Note that a message arrived. The receiver works again, so all delayed messages become due."""
        for other in self._due.values():
            if not other.refused:
                other.due = -math.inf
        key = message.incident_key
        if self._incidents.get(key) is not incident:
            return
        incident.failures, incident.refused, incident.due = 0, False, -math.inf
        incident.sending, incident.heard = False, True
        if message.state == "firing":
            incident.told_at = self._clock.mono()
            incident.begins = _risen(message, incident.alert)
        elif incident.ends and not incident.begins:
            self.forget(key)
            return
        self._due.pop(key, None)
        if incident.begins or incident.ends:
            self._due[key] = incident

    def failed(self, incident: Incident, *, refused: bool) -> None:
        """Note that a message may not have arrived: it is due again after a pause, and after all others.

        ``refused``: the receiver works and refused this message.
        """
        incident.due = self._clock.mono() + min(
            LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(incident.failures, 10)
        )
        incident.failures += 1
        incident.refused, incident.sending = refused, False
        incident.heard = incident.heard or not refused
        key = incident.alert.incident_key
        if self._due.get(key) is incident:
            self._due[key] = self._due.pop(key)
            if not incident.begins:
                self._spare(incident)

    def hurry(self) -> None:
        """Make every message due now, because the process stops."""
        for incident in self._due.values():
            incident.due = -math.inf

    def undelivered(self) -> int:
        """How many incidents have a message that is not delivered."""
        return len(self._due)

    def owes(self, incident_key: str) -> bool:
        """Whether the end of an incident is still to be delivered."""
        known = self._due.get(incident_key)
        return known is not None and known.ends

    def going_on(self) -> list[Alert]:
        """The alerts of all incidents that are not over."""
        return [incident.alert for incident in self._incidents.values() if not incident.ends]

    def leave(self) -> None:
        """Drop all beginnings; keep the incidents that the sink may have heard of, for their ends."""
        for key, incident in list(self._due.items()):
            incident.begins = False
            if not incident.heard and not incident.sending:
                self.forget(key)
            elif not incident.ends:
                del self._due[key]

    def clear(self) -> None:
        """Forget everything."""
        self._incidents.clear()
        self._due.clear()

    def recall(self, incident_key: str) -> None:
        """Take back the end of an incident that goes on."""
        known = self._due.get(incident_key)
        if known is not None and known.ends:
            known.ends = False
            del self._due[incident_key]


def _risen(before: Alert, after: Alert) -> bool:
    return after.urgency == "high" and before.urgency == "low"
