"""The alerts that are open for one item, beyond the farm that fired them.

Who fired an alert may be gone when the trouble is over, and then nobody would ever say so. The open ones
stand in the item's status (``StatusWriter`` writes them), so whoever takes the item over knows them: it ends
them, under the same incident key, and does not fire them again. One whose end is not delivered yet counts as
open: this farm may be gone before it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from alerting.alert import Alert
from alerting.alerter import Alerter


class Incidents:
    """Tells of one item's troubles. ``inherited`` are the incident keys that an earlier owner left open."""

    __slots__ = ("_alerter", "_ended", "_inherited", "_open")

    def __init__(self, alerter: Alerter, inherited: Iterable[str] = ()) -> None:
        self._alerter = alerter
        # Nearly all items have none at all, and all of those share one.
        self._open = self._inherited = frozenset(inherited)
        self._ended: frozenset[str] = frozenset()

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def open(self) -> tuple[str, ...]:
        """Incident keys of what is wrong now, or was and is not told to be over."""
        return tuple(sorted(self._open | self.owed()))

    def owed(self) -> frozenset[str]:
        """Incident keys of what is over and not told to be."""
        if self._ended:
            self._ended = frozenset(key for key in self._ended - self._open if self._alerter.owes(key))
        return self._ended

    def inherit(self, key: str) -> None:
        """An earlier owner has fired this, as something else than the status tells."""
        if key not in self._open:
            self._open |= {key}
            self._inherited |= {key}

    async def tell(self, alert: Alert) -> None:
        """The trouble is there, still or anew; repeating it is free."""
        key = alert.incident_key
        if key not in self._open:
            self._open |= {key}
            # What this process told under the key at an earlier time was ended by another one.
            await self._alerter.forget(key)
        elif key in self._inherited:
            self._inherited -= {key}
            await self._alerter.adopt(alert)
        await self._alerter.fire(alert)

    async def end(self, key: str) -> None:
        """The trouble is over, if there was any."""
        if key not in self._open:
            return
        if key in self._inherited:
            self._inherited -= {key}
            # All alerts of items are of low urgency, which the status therefore need not tell.
            await self._alerter.adopt(Alert(summary=f"{key}: an earlier owner told of it", incident_key=key))
        self._open -= {key}
        self._ended |= {key}
        await self._alerter.resolve(key)

    async def end_all(self) -> None:
        """The item is gone, and with it all that was wrong with it."""
        for key in sorted(self._open):
            await self.end(key)
