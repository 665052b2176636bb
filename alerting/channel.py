"""The loop of one sink: delivers the messages of its outbox one at a time, until the sink has them.

A sink that hangs, refuses or crashes delays only its own messages; each failure is counted
(``farmd_alerts_sent_total``) and logged.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from alerting.alert import Alert
from alerting.alerter import Sink
from alerting.errors import AlertingError, DeliveryFailed
from alerting.outbox import Incident, Outbox
from alerting.route import Route
from store.ports import Clock, Recorder

METRIC = "farmd_alerts_sent_total"

_log = structlog.get_logger()


class Channel:
    """One sink with its outbox. ``limit`` is seconds for one delivery; ``idle`` is set while nothing is due.

    ``leaving``: the sink is not configured any more; it gets the ends of its incidents and nothing else.
    """

    def __init__(
        self,
        route: Route,
        outbox: Outbox,
        clock: Clock,
        recorder: Recorder,
        limit: float,
    ) -> None:
        self.route = route
        self.outbox = outbox
        self.leaving = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._clock = clock
        self._recorder = recorder
        self._limit = limit
        self._wake = asyncio.Event()

    def fire(self, alert: Alert) -> None:
        """Deliver the alert, if the sink takes alerts of this urgency."""
        if self.leaving:
            self.outbox.recall(alert.incident_key)
        elif not self.route.takes(alert):
            return
        elif not self.outbox.fire(alert):
            self._count("duplicate")
        else:
            lost = self.outbox.overflow()
            if lost is not None:
                self._failed(lost, "too_many_incidents", "more incidents are open than are remembered")
            self.look()

    def resolve(self, incident_key: str) -> None:
        """Deliver the end of the incident, if the sink was sent its beginning."""
        self.outbox.resolve(incident_key)
        self.look()

    def adopt(self, alert: Alert, *, anywhere: bool = False) -> None:
        """Treat the alert as delivered: another process sent it to the sink. ``anywhere``: a sink that does
        not take it gets its end.
        """
        takes = self.route.takes(alert)
        if (takes or anywhere) and not self.leaving:
            self.outbox.adopt(alert, released=not takes)
            self.look()

    @property
    def sink(self) -> Sink:
        """Where it delivers."""
        return self.route.sink

    def use(self, route: Route) -> Sink:
        """Deliver to the same receiver by another route; returns the former sink."""
        former, self.route = self.sink, route
        if self.leaving:
            self.leaving = False
            self.outbox.come_back(route.keep)
            self.look()
        return former

    def leave(self) -> None:
        """The sink is not configured any more."""
        self.leaving = True
        self.outbox.leave()
        self.look()

    def look(self) -> None:
        """Look at the outbox now."""
        self.idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled, or until a leaving sink has all its messages."""
        while not (self.leaving and len(self.outbox) == 0):
            self._wake.clear()
            incident = self.outbox.take()
            if incident is not None:
                await self._deliver(incident, incident.message())
            else:
                self.idle.set()
                await self._wait(self.outbox.wait())
        self.idle.set()

    async def _wait(self, seconds: float) -> None:
        waiters: list[asyncio.Future[object]] = [asyncio.ensure_future(self._wake.wait())]
        if seconds < math.inf:
            waiters.append(asyncio.ensure_future(self._clock.sleep(max(seconds, 0.0))))
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _deliver(self, incident: Incident, message: Alert) -> None:
        try:
            async with asyncio.timeout(self._limit):
                await self.sink.deliver(message)
        except TimeoutError:
            self.outbox.failed(incident, refused=False)
            self._failed(message, "delivery_timeout", f"not delivered within {self._limit:g} s")
        except AlertingError as error:
            self.outbox.failed(incident, refused=not error.retry)
            if isinstance(error, DeliveryFailed) and error.after:
                self.outbox.quiet(error.after)
            self._failed(message, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - a broken sink must not end its channel, nor another
            self.outbox.failed(incident, refused=False)
            self._failed(message, "sink_crashed", type(error).__name__)
        else:
            self.outbox.delivered(incident, message)
            self._count("resolved" if message.state == "resolved" else "sent")

    def _failed(self, alert: Alert, code: str, why: str) -> None:
        self._count("failed")
        _log.warning(
            "alerts.not_delivered",
            sink=self.sink.name,
            incident_key=alert.incident_key,
            state=alert.state,
            code=code,
            error=why,
        )

    def _count(self, result: str) -> None:
        self._recorder.count(METRIC, sink=self.sink.name, result=result)
