"""What a farm cannot do in a cluster: told to people by alerts, and in the farm's presence to the doctor.

Farms that share a cluster share its incidents. Those that are open stand in the pinned record: the farm that
enters one fires it, and the last farm that has the trouble, or any after it, ends it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from alerting.alert import Alert, one_line
from farmd.farm.alerts import Incidents
from farmd.kubernetes.pin import Pin
from farmd.work.context import Context
from store.farms import ClusterReport
from store.words import alike

LASTING_SECONDS = 60.0
# The troubles that people are alerted of, and what their summaries say.
ALERTED = {
    "unreachable": "farms do not reach it",
    "denied": "farms lack rights",
    "identity": "removals are frozen",
}


class Troubles:
    """The troubles of one cluster, as one farm has them."""

    def __init__(self, context: Context, name: str, pin: Pin) -> None:
        self._context, self._name, self._pin = context, name, pin
        self._incidents = Incidents(context.alerter)
        self._ended: set[str] = set()
        self._since: dict[str, float] = {}
        self._said: dict[str, str] = {}

    async def tell(self, found: Mapping[str, str], report: ClusterReport) -> None:
        """Say which troubles there are now, in words by code, beside what the report says already.

        Raises:
            StoreError: the incidents could not be read or written; try again.
        """
        now = self._context.clock.mono()
        self._since = {code: self._since.get(code, now) for code in found}
        lasting = {code: found[code] for code in found if now - self._since[code] >= LASTING_SECONDS}
        # Another number alone is no news.
        self._said = {
            code: self._said[code] if alike(self._said.get(code, ""), text) else text
            for code, text in lasting.items()
        }
        self._context.features.report(self._name, msgspec.structs.replace(report, troubles=dict(self._said)))
        await self._alert(found)

    async def _alert(self, found: Mapping[str, str]) -> None:
        if self._wanted(found) != set(self._pin.record.alerts):
            await self._pin.read()
        before, wanted = set(self._pin.record.alerts), self._wanted(found)
        for key in before - self._ended:
            self._incidents.inherit(key)
        for key in set(self._incidents.open()) - wanted:
            await self._incidents.end(key, "high")
            self._ended.add(key)
        wanted |= self._incidents.owed()
        if wanted != before:
            await self._pin.write(msgspec.structs.replace(self._pin.record, alerts=sorted(wanted)))
        # What this farm ended stands in the record until its end is delivered.
        self._ended &= wanted
        for code in ALERTED.keys() & self._said.keys():
            await self._incidents.tell(self._alert_of(code))

    def _wanted(self, found: Mapping[str, str]) -> set[str]:
        """The incidents that should be open: those of lasting troubles, and open ones that some farm has."""
        lasting = {self._key(code) for code in ALERTED.keys() & self._said.keys()}
        held = {self._key(code) for code in found}
        for stored in self._context.caches.farms.entries.values():
            report = stored.record.clusters.get(self._name)
            if report is not None and stored.record.id != self._context.farm:
                held |= {self._key(code) for code in report.troubles}
        return lasting | (set(self._pin.record.alerts) & held)

    def _key(self, code: str) -> str:
        return f"kubernetes_{code}_{self._name}"

    def _alert_of(self, code: str) -> Alert:
        summary = f"Kubernetes {self._name!r}: {ALERTED[code]}: {self._said[code]}"
        details = {"cluster": self._name, "farm": self._context.farm}
        return Alert(
            summary=one_line(summary),
            incident_key=self._key(code),
            urgency="high",
            details=details,
            labels={"kind": "kubernetes"},
        )
