"""Alerts of freezes: one incident for each evidence, however many kinds and farms it freezes (R18).

One cause, such as the absence of most agents, freezes several kinds of work on every farm. The farm that
recorded the freeze first fires and resolves the alert. When that farm is gone, a farm that has the same
evidence, or clears the record, takes its place: it does not fire the alert again, and resolves it when no
record and no evidence of its own names the incident any more. A farm that cannot record its freeze fires the
alert itself. A person's acknowledgement is told as one of the alert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set

import msgspec

from alerting.alert import FREEZE, Alert, Alerter
from farmd.kinds import KINDS
from store.cache import PrefixCache
from store.failsafe import Acknowledgement, Failsafe, acknowledged

LACKS_SENTINEL = "the answer lacks the sentinel"
KEY_LIMIT = 120
# A freeze is of no single kind of work.
LABELS = {"kind": FREEZE}


def incident_key(evidence: str) -> str:
    """The incident key of an evidence (p2's own key where there is one).

    The same evidence in several trees, such as those of a wiped store, is one incident.
    """
    tree, _, what = evidence.partition(": ")
    kind = KINDS.get(tree)
    if kind is not None and kind.wiped and what == LACKS_SENTINEL:
        return kind.wiped
    plain = re.sub(r"[^a-z0-9]+", "_", (what or tree).lower()).strip("_")
    return f"failsafe_{plain}"[:KEY_LIMIT]


class FreezeAlerts:
    """Fires and resolves the alerts of one farm's guards. ``present``: whether a farm is present."""

    def __init__(
        self,
        farm: str,
        cache: PrefixCache[Failsafe],
        alerter: Alerter,
        *,
        present: Callable[[str], bool],
    ) -> None:
        self._me = f"farm/{farm}"
        self._cache = cache
        self._alerter = alerter
        self._present = present
        self._doubts: dict[str, tuple[str, ...]] = {}
        self._gone: dict[str, str] = {}
        self._speakers: dict[str, str] = {}
        self._tried: set[str] = set()
        self._recorded: set[str] = set()
        self._told: set[str] = set()
        self._cleared: set[str] = set()
        self._words: dict[str, tuple[Acknowledgement | None, ...]] = {}

    def recording(self, evidence: str) -> None:
        """Note that this process is about to record a freeze; the answer may be lost."""
        self._tried.add(incident_key(evidence))

    def recorded(self, evidence: str) -> None:
        """Note that the freeze was recorded, and that earlier records by other farms have been read since."""
        self._recorded.add(incident_key(evidence))

    def cleared(self, evidence: str) -> None:
        """Note that this process cleared a freeze; the farm that fired its alert may be gone."""
        key = incident_key(evidence)
        if not self._present_other(self._speakers.get(key, "")):
            self._cleared.add(key)

    async def say(self, kind: str, *doubts: str) -> None:
        """Fire and resolve alerts; ``doubts`` is the present evidence of that kind's guard."""
        self._doubts[kind] = doubts
        doubted = {incident_key(each): each for found in self._doubts.values() for each in found}
        standing = {incident_key(stored.record.evidence) for stored in self._cache.entries.values()}
        self._listen(standing | doubted.keys())
        for key in sorted(doubted.keys() - self._told):
            await self._begin(key, doubted[key])
        await self._acknowledge()
        for key in self._over(kind, (self._told | self._cleared) - standing - doubted.keys()):
            await self._end(key)

    def _over(self, kind: str, gone: Set[str]) -> list[str]:
        """Incidents that the same guard finds gone twice in a row. Another farm that still has the evidence
        has recorded it by then.
        """
        self._gone = {key: seen_by for key, seen_by in self._gone.items() if key in gone}
        over = [key for key in sorted(gone) if self._gone.get(key) == kind]
        for key in gone:
            self._gone.setdefault(key, kind)
        return over

    def _listen(self, going_on: Set[str]) -> None:
        """Note which farm fired the alert of each incident: the one that recorded it first."""
        self._speakers = {key: by for key, by in self._speakers.items() if key in going_on}
        for key in going_on - self._speakers.keys():
            first = self._first(key)
            if first is not None and (first.by != self._me or key in self._recorded):
                self._speakers[key] = first.by

    async def _begin(self, key: str, evidence: str) -> None:
        first = self._first(key)
        speaker = self._speakers.get(key) or (first.by if first is not None else "")
        if self._present_other(speaker):
            return
        alert = self._alert(key, evidence)
        self._told.add(key)
        news = not speaker or (speaker == self._me and key in self._tried)
        await (self._alerter.fire(alert) if news else self._alerter.adopt(alert))

    def _alert(self, key: str, evidence: str) -> Alert:
        kinds = sorted(kind for kind, doubts in self._doubts.items() if evidence in doubts)
        return Alert(
            summary=f"removals are frozen: {evidence}",
            incident_key=key,
            urgency="high",
            details={"kinds": " ".join(kinds), "farm": self._me.partition("/")[2], "evidence": evidence},
            labels=LABELS,
        )

    async def _acknowledge(self) -> None:
        """Report, once per acknowledgement, that a person acknowledged the evidence of all freezes of an
        incident.
        """
        for key in sorted(self._told):
            records = self._records(key)
            words = tuple(record.acknowledgement for record in records if acknowledged(record))
            if not words or len(words) < len(records) or self._words.get(key) == words:
                continue
            self._words[key] = words
            told = {"acknowledged_by": ", ".join(sorted({word.by for word in words if word is not None}))}
            alert = self._alert(key, records[0].evidence)
            details = {**alert.details, **told}
            await self._alerter.fire(msgspec.structs.replace(alert, state="acknowledged", details=details))

    async def _end(self, key: str) -> None:
        if key not in self._told:
            told = Alert(summary="removals were frozen", incident_key=key, urgency="high", labels=LABELS)
            await self._alerter.adopt(told)
        for known in (self._told, self._cleared, self._tried, self._recorded):
            known.discard(key)
        self._words.pop(key, None)
        await self._alerter.resolve(key)

    def _first(self, key: str) -> Failsafe | None:
        """The oldest record of an incident, of any kind of work."""
        return next(iter(self._records(key)), None)

    def _records(self, key: str) -> list[Failsafe]:
        """All records of an incident, the oldest first."""
        entries = self._cache.entries.values()
        found = [stored for stored in entries if incident_key(stored.record.evidence) == key]
        ordered = sorted(found, key=lambda stored: (stored.create_index, stored.key))
        return [stored.record for stored in ordered]

    def _present_other(self, by: str) -> bool:
        kind, _, farm = by.partition("/")
        return by != self._me and kind == "farm" and self._present(farm)
