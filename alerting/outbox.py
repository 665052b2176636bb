"""The messages that one sink must still get: of each incident its beginning, reminders and its end. No I/O.

A worker fires an alert in every cycle in which the trouble stands (p2 re-sent every 30 s and relied on the
receiver: W22). An alert is sent if its key is new, if its urgency rose, if it was acknowledged, or if the
re-send interval is over. Only a fired incident can be resolved. A failed delivery is repeated without limit,
with growing pauses. The messages of one incident keep their order; a message that a later one replaces is
left out, and what waits is as the incident is now. One incident has a few messages a minute: of a flapping
one the last word comes later. The number of incidents is bounded: the one whose last alert is oldest is
forgotten first.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from msgspec.structs import replace

from alerting.alert import Alert
from store.ports import Clock

FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0
MOST_A_MINUTE = 6
MINUTE = 60.0


@dataclass(slots=True)
class Incident:
    """``begins`` and ``ends``: the sink must still get the beginning or end; ``due`` is the earliest time.
    ``since``: when it began, or was adopted (seconds since the epoch).

    ``heard``: the sink may have got the beginning; ``sending``: a message is under way; ``released``: no
    worker of this process has the incident, so that the sink is not told of it again.
    """

    alert: Alert
    since: float
    begins: bool
    ends: bool = False
    heard: bool = False
    sending: bool = False
    released: bool = False
    told_at: float = -math.inf
    failures: int = 0
    refused: bool = False
    due: float = -math.inf

    def message(self) -> Alert:
        """The message to send next."""
        alert = replace(self.alert, since=self.since)
        return alert if self.begins else alert.resolved()


class Outbox:
    """The incidents of one sink. ``resend`` is in seconds, ``capacity`` a number of incidents. ``keep``:
    seconds after which the sink forgets an incident without a repeat; 0: never.
    """

    def __init__(
        self, clock: Clock, *, resend: float = 3600.0, keep: float = 0.0, capacity: int = 10_000
    ) -> None:
        self._clock = clock
        self._resend = resend
        self._keep = keep
        self._capacity = capacity
        self._quiet_until = -math.inf
        self._kept: OrderedDict[str, Incident] = OrderedDict()
        self._told: OrderedDict[str, deque[float]] = OrderedDict()
        self._incidents: OrderedDict[str, Incident] = OrderedDict()
        self._due: dict[str, Incident] = {}

    def __len__(self) -> int:
        return len(self._incidents)

    def fire(self, alert: Alert) -> bool:
        """Take a firing alert; False if the sink has it already, or will get it without a change."""
        key = alert.incident_key
        known = self._incidents.get(key)
        if known is None:
            known = Incident(alert, self._clock.now(), begins=True, due=self._allowed(key))
            self._incidents[key] = self._due[key] = known
            return True
        self._incidents.move_to_end(key)
        if known.released:
            known.released = False
            if self._keep:
                known.told_at = -math.inf  # nobody may have told the sink again since
        if _news(known.alert, alert):
            known.due = self._allowed(key)
        elif not known.ends and (known.begins or self._clock.mono() - known.told_at < self._resend):
            if known.begins or self._keep:
                known.alert = alert
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
        self._kept.pop(incident_key, None)
        if known.failures == 0 and not known.heard and not known.sending:
            if known.due > self._clock.mono():
                self.forget(incident_key)  # it flaps: the last that the sink got is an end
            return  # no delivery was tried yet: the sink gets the beginning, then the end
        known.begins = False
        if incident_key not in self._due:
            known.due = self._allowed(incident_key)
            self._due[incident_key] = known
        self._spare(known)

    def _spare(self, incident: Incident) -> None:
        """Forget an incident that is over and whose beginning the sink refused: it needs no end."""
        if incident.ends and not incident.heard and not incident.sending:
            self.forget(incident.alert.incident_key)

    def adopt(self, alert: Alert, *, released: bool = False) -> None:
        """Remember an alert that another process delivered as delivered, unless the incident is known;
        ``released``: only for its end.
        """
        known = self._incidents.get(alert.incident_key)
        if known is None:
            known = Incident(alert, self._clock.now(), begins=False, heard=True, released=True)
            self._incidents[alert.incident_key] = known
        if known.released and not released:
            known.released, known.told_at = False, self._clock.mono()
            if not known.begins:
                self._keep_on(known)

    def release(self, incident_key: str) -> None:
        """Stop telling the sink again of an incident that another process may have now."""
        known = self._incidents.get(incident_key)
        if known is None or known.ends:
            return
        known.released = True
        self._kept.pop(incident_key, None)
        if self._keep and known.begins and known.told_at > -math.inf:
            known.begins = False
            del self._due[incident_key]

    def forget(self, incident_key: str) -> None:
        """Forget an incident; nothing is sent."""
        self._incidents.pop(incident_key, None)
        self._due.pop(incident_key, None)
        self._kept.pop(incident_key, None)

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
        if now < self._quiet_until:
            return None
        self._repeat(now)
        found = next((incident for incident in self._due.values() if incident.due <= now), None)
        if found is not None:
            found.sending = True
        return found

    def wait(self) -> float:
        """Seconds until a message is due; infinity if there is none."""
        due = min((incident.due for incident in self._due.values()), default=math.inf)
        if self._kept:
            due = min(due, next(iter(self._kept.values())).told_at + self._keep)
        return max(due, self._quiet_until) - self._clock.mono()

    def quiet(self, seconds: float) -> None:
        """Send nothing for so many seconds, because the receiver asked for that."""
        self._quiet_until = self._clock.mono() + seconds

    def delivered(self, incident: Incident, message: Alert) -> None:
        """Note that a message arrived. The receiver works again, so all delayed messages become due."""
        key, now = message.incident_key, self._clock.mono()
        self._tell(key, now)
        for name, other in self._due.items():
            if other.failures and not other.refused:
                other.due = self._allowed(name)
        if self._incidents.get(key) is not incident:
            return
        incident.failures, incident.refused, incident.due = 0, False, self._allowed(key)
        incident.sending, incident.heard = False, True
        if message.state != "resolved":
            incident.told_at = now
            incident.begins = _news(message, incident.alert)
        elif incident.ends and not incident.begins:
            self.forget(key)
            return
        self._due.pop(key, None)
        if incident.begins or incident.ends:
            self._due[key] = incident
        self._keep_on(incident)

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
        self._quiet_until = -math.inf
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
        """The alerts of all incidents that are not over, and that a worker of this process has."""
        return [each.alert for each in self._incidents.values() if not each.ends and not each.released]

    def leave(self) -> None:
        """Drop all beginnings; keep the incidents that the sink may have heard of, for their ends."""
        self._keep = 0.0
        self._kept.clear()
        for key, incident in list(self._due.items()):
            incident.begins = False
            if not incident.heard and not incident.sending:
                self.forget(key)
            elif not incident.ends:
                del self._due[key]

    def come_back(self, keep: float) -> None:
        """Undo ``leave``: repeat to the sink what it would forget."""
        self._keep = keep
        for incident in sorted(self._incidents.values(), key=lambda each: each.told_at):
            if not incident.begins:
                self._keep_on(incident)

    def clear(self) -> None:
        """Forget everything."""
        self._incidents.clear()
        self._due.clear()
        self._kept.clear()

    def recall(self, incident_key: str) -> None:
        """Take back the end of an incident that goes on."""
        known = self._due.get(incident_key)
        if known is not None and known.ends:
            known.ends = False
            del self._due[incident_key]

    # -- what a sink must be told again, and how often it may be told ------------------------------
    def _keep_on(self, incident: Incident) -> None:
        """Repeat the incident in time, if the sink would forget it."""
        if self._keep and not incident.ends and not incident.released:
            self._kept[incident.alert.incident_key] = incident
            self._kept.move_to_end(incident.alert.incident_key)

    def _repeat(self, now: float) -> None:
        """Make the incidents due that were sent most recently, in the order in which they were sent."""
        while self._kept:
            key, incident = next(iter(self._kept.items()))
            if incident.told_at + self._keep > now:
                return
            del self._kept[key]
            if key not in self._due:
                incident.begins, incident.due = True, -math.inf
                self._due[key] = incident

    def _tell(self, key: str, now: float) -> None:
        """Note when the sink got a message of the incident, also beyond its end."""
        self._told.setdefault(key, deque(maxlen=MOST_A_MINUTE)).append(now)
        self._told.move_to_end(key)
        while self._told and next(iter(self._told.values()))[-1] <= now - MINUTE:
            self._told.popitem(last=False)

    def _allowed(self, key: str) -> float:
        """When the next message of the incident may be sent."""
        told = self._told.get(key)
        return told[0] + MINUTE if told is not None and len(told) == MOST_A_MINUTE else -math.inf


def _news(before: Alert, after: Alert) -> bool:
    """Whether the second alert differs so much from the first that the sink must get it at once."""
    acknowledged = after.state == "acknowledged" != before.state
    return acknowledged or (after.urgency == "high" and before.urgency == "low")
