"""The alerts that are open for one item, also those that another farm fired.

The farm that fired an alert may be gone when the trouble ends, and then no farm would resolve the alert. So
the item's status lists the open alerts (``StatusWriter`` writes them), and the next owner of the item knows
them: it resolves them under the same incident key and does not fire them again. An alert whose end is not
delivered yet counts as open, because this farm may end before the delivery.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from alerting.alert import Alert, Alerter, Urgency, one_line

# Nearly all items have none, and share this one: Python makes each empty frozenset anew, of 216 bytes.
_NONE: frozenset[str] = frozenset()


class Labelled(Protocol):
    """What alerts are about."""

    def labels(self) -> dict[str, str]:
        """The labels by which they are routed."""

    def title(self) -> str:
        """The name of the item for people, such as ``rc/web``."""

    def path(self) -> str:
        """Where the page shows it; empty: nowhere."""


class Incidents:
    """Fires and resolves the alerts of one item. ``inherited`` are incident keys that an earlier owner left
    open.
    """

    __slots__ = ("_about", "_alerter", "_ended", "_inherited", "_open")

    def __init__(
        self, alerter: Alerter, inherited: Iterable[str] = (), about: Labelled | None = None
    ) -> None:
        self._alerter = alerter
        self._about = about
        self._open = self._inherited = frozenset(inherited) or _NONE
        self._ended = _NONE

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def open(self) -> tuple[str, ...]:
        """Incident keys of present troubles, and of past ones whose end is not delivered yet."""
        return tuple(sorted(self._open | self.owed()))

    def owed(self) -> frozenset[str]:
        """Incident keys whose end is not delivered yet."""
        if self._ended:
            self._ended = frozenset(key for key in self._ended - self._open if self._alerter.owes(key))
        return self._ended

    def inherit(self, key: str) -> None:
        """Count an alert as open that an earlier owner fired, and that the status does not list."""
        if key not in self._open:
            self._open |= {key}
            self._inherited |= {key}

    async def tell(self, alert: Alert) -> None:
        """Fire the alert, or keep it open; a repetition sends nothing."""
        key, alert = alert.incident_key, self._labelled(alert)
        if key not in self._open:
            self._open |= {key}
            # Another process ended what this process fired under the key earlier.
            await self._alerter.forget(key)
        elif key in self._inherited:
            self._inherited -= {key}
            await self._alerter.adopt(alert, anywhere=True)
        await self._alerter.fire(alert)

    async def say(self, key: str, text: str, details: dict[str, str], urgency: Urgency = "low") -> None:
        """Fire an alert with this text, or keep it open; an empty text resolves it."""
        if text:
            await self.tell(Alert(summary=one_line(text), incident_key=key, urgency=urgency, details=details))
        else:
            await self.end(key, urgency)

    def pass_on(self, key: str) -> None:
        """Stop keeping the alert alive, and leave it open: another item reports it or its end from now on."""
        self._open -= {key}
        self._inherited -= {key}
        self._alerter.release(key)

    def release(self) -> None:
        """Keep no alert alive from now on, because the item's worker ended: the next one does."""
        for key in self._open:
            self._alerter.release(key)

    async def end(self, key: str, urgency: Urgency = "low") -> None:
        """Resolve the alert if it is open; ``urgency`` is the one with which it was fired."""
        if key not in self._open:
            return
        if key in self._inherited:
            self._inherited -= {key}
            summary = f"{key}: reported by an earlier owner"
            told = Alert(summary=summary, incident_key=key, urgency=urgency)
            await self._alerter.adopt(self._labelled(told), anywhere=True)
        self._open -= {key}
        self._ended |= {key}
        await self._alerter.resolve(key)

    async def end_all(self) -> None:
        """Resolve all alerts, because the item is gone."""
        for key in sorted(self._open):
            await self.end(key)

    def _labelled(self, alert: Alert) -> Alert:
        about = self._about
        if about is None:
            return alert
        labels = {**alert.labels, **about.labels()}
        return msgspec.structs.replace(alert, labels=labels, item=about.title(), path=about.path())
