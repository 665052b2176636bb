"""Routes alerts to sinks by urgency. Each sink has its own lane: what it must know, and a task that tells it.

A worker that fires waits for nobody: the call returns at once. What a sink must know is kept until it does,
an end above all, also while the set of sinks is exchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from alerting.alert import Alert, Urgency
from alerting.alerter import Sink
from alerting.lane import Lane
from alerting.outbox import Outbox
from store.ports import Clock, Recorder

DELIVERY_LIMIT = 300.0  # seconds; more than all retries of a sink, so that no lane hangs for ever
LEAVING_KEPT = 8

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Route:
    """One sink and the urgencies that it is told of. ``receiver`` names who hears it, across exchanges."""

    sink: Sink
    urgencies: frozenset[Urgency] = frozenset({"high", "low"})
    receiver: str = ""


class Router:
    """Satisfies ``alerting.alerter.Alerter``. Run ``run()`` as a task; ``close()`` ends it in good order.

    ``resend`` is seconds until a firing alert that still fires is sent again, ``capacity`` how many incidents
    a sink may have.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        clock: Clock,
        recorder: Recorder,
        *,
        resend: float = 3600.0,
        capacity: int = 10_000,
        delivery_limit: float = DELIVERY_LIMIT,
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self._resend = resend
        self._capacity = capacity
        self._limit = delivery_limit
        self._lanes = [(route.receiver, self._lane(route)) for route in routes]
        self._replaced: list[Sink] = []
        self._changed = asyncio.Event()

    async def fire(self, alert: Alert) -> None:
        """Tell every sink to which it is news."""
        for _, lane in self._lanes:
            lane.fire(alert)

    async def resolve(self, incident_key: str) -> None:
        """Tell the end to every sink that was told of the incident."""
        for _, lane in self._lanes:
            lane.resolve(incident_key)

    async def adopt(self, alert: Alert) -> None:
        """From now on it counts as fired here."""
        for _, lane in self._lanes:
            lane.adopt(alert)

    async def forget(self, incident_key: str) -> None:
        """The next alert under this key is news."""
        for _, lane in self._lanes:
            lane.outbox.forget(incident_key)

    def owes(self, incident_key: str) -> bool:
        """Whether a sink that is configured must still be told that the incident is over."""
        return any(lane.outbox.owes(incident_key) for _, lane in self._lanes if not lane.leaving)

    def exchange(self, routes: Sequence[Route]) -> None:
        """Use other sinks from now on.

        A receiver that stays keeps what it knows, a new one is told what goes on, and one that is not
        configured any more is told the ends of what it heard of before it is left.
        """
        going_on = {alert.incident_key: alert for _, lane in self._lanes for alert in lane.outbox.going_on()}
        former, self._lanes = self._lanes, []
        for route in routes:
            stays = next((entry for entry in former if entry[0] == route.receiver), None)
            if stays is not None:
                former.remove(stays)
                self._replaced.append(stays[1].use(route.sink, route.urgencies))
            receiver, lane = stays or (route.receiver, self._lane(route))
            for alert in going_on.values():
                lane.fire(alert)
            self._lanes.append((receiver, lane))
        for number, (_, lane) in enumerate(former):
            lane.leave()
            if number >= LEAVING_KEPT:  # the one that was left first stands last
                _log.warning("alerts.sink_given_up", sink=lane.sink.name, undelivered=len(lane.outbox))
                lane.outbox.clear()
        self._lanes += former
        self._changed.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        running: set[Lane] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for _, lane in self._lanes:
                    if lane not in running:
                        running.add(lane)
                        group.create_task(self._run(lane))
                await self._changed.wait()

    async def _run(self, lane: Lane) -> None:
        """One lane, until its sink is left."""
        await lane.run()
        self._lanes = [entry for entry in self._lanes if entry[1] is not lane]
        await lane.sink.close()

    async def drain(self) -> None:
        """Wait until everything that is due has been tried; ``run`` must be running."""
        await asyncio.gather(*(lane.idle.wait() for _, lane in self._lanes))

    async def close(self, grace: float = 5.0) -> None:
        """Try what is undelivered for ``grace`` seconds, then close the sinks. Cancel ``run`` afterwards."""
        for _, lane in self._lanes:
            lane.outbox.hurry()
            lane.look()
        try:
            async with asyncio.timeout(grace):
                await self.drain()
        except TimeoutError:
            pass  # what is left is counted below
        left = sum(lane.outbox.undelivered() for _, lane in self._lanes)
        if left:
            _log.warning("alerts.undelivered_at_stop", incidents=left)
        for sink in [*(lane.sink for _, lane in self._lanes), *self._replaced]:
            await sink.close()

    def _lane(self, route: Route) -> Lane:
        outbox = Outbox(self._clock, resend=self._resend, capacity=self._capacity)
        return Lane(route.sink, route.urgencies, outbox, self._clock, self._recorder, self._limit)
