"""Routes alerts to sinks by urgency. Each sink has its own queue, memory and task.

A worker that fires waits for nobody: the alert goes into bounded queues and the call returns. A
slow, broken or crashing sink delays or loses its own messages only, is counted
(``farmd_alerts_sent_total``) and logged, and gets the alert again the next time it is fired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from alerting.alert import Alert, Urgency
from alerting.alerter import Sink
from alerting.dedup import Deduplicator
from alerting.errors import AlertingError
from store.ports import Clock, Recorder

METRIC = "farmd_alerts_sent_total"
QUEUE_LENGTH = 1000
DELIVERY_LIMIT = 300.0  # seconds; more than all retries of a sink, so that no lane hangs for ever

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Route:
    """One sink and the urgencies that it is told of."""

    sink: Sink
    urgencies: frozenset[Urgency] = frozenset({"high", "low"})


class Router:
    """Satisfies ``alerting.alerter.Alerter``. Run ``run()`` as a task; ``close()`` ends it in good order.

    ``resend`` is seconds until a firing alert that still fires is sent again.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        clock: Clock,
        recorder: Recorder,
        *,
        resend: float = 3600.0,
        queue_length: int = QUEUE_LENGTH,
        delivery_limit: float = DELIVERY_LIMIT,
    ) -> None:
        self._lanes = [
            _Lane(route, Deduplicator(clock, resend=resend), recorder, queue_length, delivery_limit)
            for route in routes
        ]

    async def fire(self, alert: Alert) -> None:
        """Queue for every sink to which it is news."""
        for lane in self._lanes:
            lane.fire(alert)

    async def resolve(self, incident_key: str) -> None:
        """Queue the end for every sink that was told of the incident."""
        for lane in self._lanes:
            lane.resolve(incident_key)

    async def adopt(self, alert: Alert) -> None:
        """From now on it counts as fired here."""
        for lane in self._lanes:
            lane.adopt(alert)

    async def forget(self, incident_key: str) -> None:
        """The next alert under this key is news."""
        for lane in self._lanes:
            lane.forget(incident_key)

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(lane.run())

    async def drain(self) -> None:
        """Wait until everything that was queued so far has been tried; ``run`` must be running."""
        await asyncio.gather(*(lane.queue.join() for lane in self._lanes))

    async def close(self, grace: float = 5.0) -> None:
        """Give the queues ``grace`` seconds to empty, then close the sinks. Cancel ``run`` afterwards."""
        try:
            async with asyncio.timeout(grace):
                await self.drain()
        except TimeoutError:
            left = sum(lane.queue.qsize() for lane in self._lanes)
            _log.warning("alerts.undelivered_at_stop", queued=left)
        for lane in self._lanes:
            await lane.sink.close()


class _Lane:
    """One sink's queue, memory and loop."""

    def __init__(
        self, route: Route, dedup: Deduplicator, recorder: Recorder, queue_length: int, limit: float
    ) -> None:
        self.sink = route.sink
        self.queue: asyncio.Queue[Alert] = asyncio.Queue(queue_length)
        self._urgencies = route.urgencies
        self._dedup = dedup
        self._recorder = recorder
        self._limit = limit

    def fire(self, alert: Alert) -> None:
        if alert.urgency not in self._urgencies:
            return
        if self._dedup.is_news(alert):
            self._enqueue(alert)
        else:
            self._count("duplicate")

    def adopt(self, alert: Alert) -> None:
        if alert.urgency in self._urgencies:
            self._dedup.adopt(alert)

    def forget(self, incident_key: str) -> None:
        self._dedup.forget(incident_key)

    def resolve(self, incident_key: str) -> None:
        over = self._dedup.resolve(incident_key)
        if over is not None:
            self._enqueue(over)

    async def run(self) -> None:
        while True:
            alert = await self.queue.get()
            try:
                await self._deliver(alert)
            finally:
                self.queue.task_done()

    async def _deliver(self, alert: Alert) -> None:
        try:
            async with asyncio.timeout(self._limit):
                await self.sink.deliver(alert)
        except TimeoutError:
            self._failed(alert, "delivery_timeout", f"not delivered within {self._limit:g} s")
        except AlertingError as error:
            self._failed(alert, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - a broken sink must not end its lane, nor another
            self._failed(alert, "sink_crashed", type(error).__name__)
        else:
            self._count("resolved" if alert.state == "resolved" else "sent")

    def _enqueue(self, alert: Alert) -> None:
        try:
            self.queue.put_nowait(alert)
        except asyncio.QueueFull:
            self._failed(alert, "queue_full", f"{self.queue.maxsize} alerts wait already")

    def _failed(self, alert: Alert, code: str, why: str) -> None:
        self._dedup.undo(alert)
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
