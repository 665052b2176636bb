"""A farm's contact with one cluster: whether it reaches it, and whether it is the one that is meant.

All kinds of work in the cluster share it. The farm knows the cluster's feature while both are so, and its
items go to other farms otherwise (R11). What it cannot do it tells people (``troubles.py``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from farmd.kubernetes.definitions import lacking
from farmd.kubernetes.errors import KubernetesError, UnexpectedAnswer
from farmd.kubernetes.identity import uid_of
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.pin import Pin
from farmd.kubernetes.transport import KubernetesTransport
from farmd.kubernetes.troubles import Troubles
from farmd.work.context import Context
from store.errors import CredentialInvalid, StoreError
from store.farms import CLUSTERS, ClusterReport
from store.ports import Clock, Recorder
from store.words import listed

log = structlog.get_logger()

LOOK_SECONDS = 5.0
ANSWER_SECONDS = 8.0
UNREACHED_SECONDS = 30.0
CONFIRMED_SECONDS = 1.0
DEFINITIONS_SECONDS = 600.0
SKEWED_SECONDS = 30.0
MOST_DENIALS = 3


class Contact:
    """The contact with one cluster; ``informers`` are those of all kinds of work there, ``definitions`` those
    of farmd's own resources that they need, by name. ``feature`` is what a farm knows while it reaches this
    cluster, and the cluster's items need (R11). ``report`` is what it says of the cluster by its settings.
    """

    def __init__(self, transport: KubernetesTransport, name: str, report: ClusterReport) -> None:
        self.feature = f"{CLUSTERS}{name}"
        self.informers: list[Informer[Any]] = []
        self.definitions: dict[str, Mapping[str, Any]] = {}
        self._transport, self._name, self._report = transport, name, report
        self._uid = ""
        self._error = "not asked yet"
        self._reached = self._confirmed = -math.inf
        self._older: dict[str, list[str]] = {}
        self._compared = -math.inf
        self._pin: Pin | None = None
        self._one = asyncio.Lock()

    def stranger(self) -> str | None:
        """Evidence: another cluster answers than the one that is meant (R19)."""
        if self._pin is None or not self._pin.trouble:
            return None
        return f"kubernetes {self._name}: it is another cluster than before"

    async def run(self, context: Context) -> None:
        """Look now and then until cancelled; once, however many kinds call it."""
        async with self._one:
            self._pin = Pin(context, self._name)
            troubles = Troubles(context, self._name, self._pin)
            while True:
                try:
                    await self._look(context, self._pin)
                    await self._compare(context.clock)
                    report = msgspec.structs.replace(self._report, uid=self._uid)
                    await troubles.tell(self._found(context), report)
                except StoreError as error:
                    log.debug("kubernetes.not_told", cluster=self._name, code=error.code)
                await context.clock.sleep(LOOK_SECONDS)

    async def confirm(self, context: Context) -> None:
        """Prove that what is missing there is missing in the very cluster that is meant.

        Raises:
            KubernetesError: it is another one, or does not answer.
        """
        if context.clock.mono() - self._confirmed > CONFIRMED_SECONDS:
            uid = await uid_of(self._transport, ANSWER_SECONDS)
            if self._pin is None or not self._pin.settled or uid not in ("", self._pin.record.uid):
                raise UnexpectedAnswer(f"kubernetes {self._name}: it is another cluster than before")
            self._confirmed = context.clock.mono()

    def publish(self, recorder: Recorder) -> None:
        """Write what a scrape needs: what is known by watches, and how old it is."""
        for label in {informer.source.label for informer in self.informers}:
            alike = [each for each in self.informers if each.source.label == label]
            recorder.set("farmd_informer_objects", sum(len(each.store) for each in alike), resource=label)
            broken = sum(len(each.store.broken) for each in alike)
            recorder.set("farmd_invalid_records", broken, family=f"kubernetes_{label}")
            age = max(each.staleness() for each in alike)
            recorder.set("farmd_watch_staleness_seconds", age, watch=f"kubernetes_{label}")

    async def _look(self, context: Context, pin: Pin) -> None:
        clock = context.clock
        try:
            self._uid = await uid_of(self._transport, ANSWER_SECONDS, Priority.PROBE)
            self._reached, self._error = clock.mono(), ""
        except (KubernetesError, CredentialInvalid) as error:
            log.debug("kubernetes.unreached", cluster=self._name, error=error.message)
            self._error = error.message
        try:
            if not self._error:
                await pin.compare(self._uid)
        finally:
            reaches = clock.mono() - self._reached <= UNREACHED_SECONDS
            if reaches and pin.settled and not pin.trouble:
                context.features.add(self.feature)
            else:
                context.features.withdraw(self.feature)

    async def _compare(self, clock: Clock) -> None:
        """Look now and then whether the cluster's definitions are older than this version."""
        if self._error or clock.mono() - self._compared < DEFINITIONS_SECONDS:
            return
        self._compared = clock.mono()
        for name, definition in self.definitions.items():
            try:
                self._older[name] = await lacking(self._transport, definition)
            except (KubernetesError, CredentialInvalid) as error:
                log.debug("kubernetes.definition_not_read", definition=name, error=error.message)

    def _found(self, context: Context) -> dict[str, str]:
        """The present troubles, in words by code."""
        skew = self._transport.now() - context.clock.now()
        older = [f"{name} lacks {listed(fields, 3)}" for name, fields in self._older.items() if fields]
        missing = {str(each.source.resource) for each in self.informers if each.doubt and not each.denied}
        found = {
            "unreachable": self._error,
            "identity": self._pin.trouble if self._pin is not None else "",
            "denied": listed([str(each) for each in self._transport.denials.current()], MOST_DENIALS),
            "older": "; ".join(older),
            "missing": ", ".join(sorted(missing)),
            "clock-skew": _skewed(skew) if abs(skew) > SKEWED_SECONDS else "",
        }
        return {code: text for code, text in found.items() if text}


def _skewed(seconds: float) -> str:
    return f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
