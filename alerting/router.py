"""Routes alerts to sinks. Each sink has its own channel: an outbox, and a task that delivers it.

``fire`` returns at once and waits for no delivery. Messages are kept until they are delivered, most of all
the ends of incidents, also while the set of sinks is exchanged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from alerting.alert import Alert, Sink, Urgency
from alerting.errors import AlertingError, DeliveryFailed
from alerting.outbox import Incident, Outbox
from store.ports import Clock, Recorder
from store.selectors import Selector, parse

# Which alerts a sink gets: by their urgency, and by the labels of what they are about.

EVERYTHING = parse("")


@dataclass(frozen=True, slots=True)
class Route:
    """One sink and the alerts that it gets: of these urgencies, with labels that match the selector.

    ``receiver`` identifies its receiver across exchanges. ``keep``: see ``Outbox``.
    """

    sink: Sink
    urgencies: frozenset[Urgency] = frozenset({"high", "low"})
    receiver: str = ""
    selector: Selector = EVERYTHING
    keep: float = 0.0

    def takes(self, alert: Alert) -> bool:
        """Whether the sink gets the alert."""
        return alert.urgency in self.urgencies and self.selector.matches(alert.labels)


# The loop of one sink: delivers the messages of its outbox one at a time, until the sink has them.
#
# A sink that hangs, refuses or crashes delays only its own messages; each failure is counted
# (``farmd_alerts_sent_total``) and logged.

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
                self._failed(lost, "too_many_incidents", "more incidents are open than can be remembered")
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


# Seconds; more than five attempts with the longest ``timeout`` of a sink, 120 s, and the waits between them.
DELIVERY_LIMIT = 660.0
LEAVING_KEPT = 8
WAITING = "farmd_alerts_waiting"


class Router:
    """Satisfies ``alerting.alert.Alerter``. Run ``run()`` as a task; ``close()`` empties the outboxes.

    ``capacity`` is how many incidents a sink may have.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        clock: Clock,
        recorder: Recorder,
        *,
        capacity: int = 10_000,
        delivery_limit: float = DELIVERY_LIMIT,
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self._capacity = capacity
        self._limit = delivery_limit
        self._channels = [(route.receiver, self._channel(route)) for route in routes]
        self._replaced: list[Sink] = []
        self._changed = asyncio.Event()

    async def fire(self, alert: Alert) -> None:
        """Queue the alert for every sink."""
        for _, channel in self._channels:
            channel.fire(alert)

    async def resolve(self, incident_key: str) -> None:
        """Queue the end for every sink that was sent the incident."""
        for _, channel in self._channels:
            channel.resolve(incident_key)

    async def adopt(self, alert: Alert, *, anywhere: bool = False) -> None:
        """Treat the alert as delivered to the sinks that take it; ``anywhere``: the others get its end."""
        for _, channel in self._channels:
            channel.adopt(alert, anywhere=anywhere)

    async def forget(self, incident_key: str) -> None:
        """Forget the incident: its next alert is sent."""
        for _, channel in self._channels:
            channel.outbox.forget(incident_key)

    def release(self, incident_key: str) -> None:
        """Leave it to another process to keep the incident alive."""
        for _, channel in self._channels:
            channel.outbox.release(incident_key)

    def owes(self, incident_key: str) -> bool:
        """Whether the end of the incident is still to be delivered to a configured sink."""
        return any(channel.outbox.owes(incident_key) for _, channel in self._channels if not channel.leaving)

    def exchange(self, routes: Sequence[Route]) -> None:
        """Use other sinks from now on.

        A receiver that stays keeps its outbox, a new one gets all open incidents, and one that is not
        configured any more gets the ends of the incidents that it heard of, and is then closed.
        """
        going_on = {
            alert.incident_key: alert for _, channel in self._channels for alert in channel.outbox.going_on()
        }
        former, self._channels = self._channels, []
        for route in routes:
            stays = next((entry for entry in former if entry[0] == route.receiver), None)
            if stays is not None:
                former.remove(stays)
                self._replaced.append(stays[1].use(route))
            receiver, channel = stays or (route.receiver, self._channel(route))
            for alert in going_on.values():
                channel.fire(alert)
            self._channels.append((receiver, channel))
        for number, (_, channel) in enumerate(former):
            channel.leave()
            if number >= LEAVING_KEPT:  # the sink that left first is last
                _log.warning("alerts.sink_given_up", sink=channel.sink.name, undelivered=len(channel.outbox))
                channel.outbox.clear()
        self._channels += former
        self._changed.set()

    def publish(self) -> None:
        """Write how many incidents have a message that a sink has not got."""
        waiting: dict[str, int] = {}
        for _, channel in self._channels:
            waiting[channel.sink.name] = waiting.get(channel.sink.name, 0) + channel.outbox.undelivered()
        for name, count in waiting.items():
            self._recorder.set(WAITING, count, sink=name)

    async def run(self) -> None:
        """Deliver until cancelled."""
        running: set[Channel] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for _, channel in self._channels:
                    if channel not in running:
                        running.add(channel)
                        group.create_task(self._run(channel))
                await self._changed.wait()

    async def _run(self, channel: Channel) -> None:
        """Run one channel until its sink has left."""
        await channel.run()
        self._channels = [entry for entry in self._channels if entry[1] is not channel]
        await channel.sink.close()

    async def drain(self) -> None:
        """Wait until every message that is due has been tried; ``run`` must be running."""
        await asyncio.gather(*(channel.idle.wait() for _, channel in self._channels))

    async def close(self, grace: float = 5.0) -> None:
        """Try to deliver the rest for ``grace`` seconds, then close the sinks. Cancel ``run`` afterwards."""
        for _, channel in self._channels:
            channel.outbox.hurry()
            channel.look()
        try:
            async with asyncio.timeout(grace):
                await self.drain()
        except TimeoutError:
            pass  # what is left is counted below
        left = sum(channel.outbox.undelivered() for _, channel in self._channels)
        if left:
            _log.warning("alerts.undelivered_at_stop", incidents=left)
        for sink in [*(channel.sink for _, channel in self._channels), *self._replaced]:
            await sink.close()

    def _channel(self, route: Route) -> Channel:
        outbox = Outbox(self._clock, keep=route.keep, capacity=self._capacity)
        return Channel(route, outbox, self._clock, self._recorder, self._limit)
