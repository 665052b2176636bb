"""Routes alerts to sinks. Each sink has its own channel: an outbox, and a task that delivers it.

``fire`` returns at once and waits for no delivery. Messages are kept until they are delivered, most of all
the ends of incidents, also while the set of sinks is exchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from alerting.alert import Alert
from alerting.alerter import Sink
from alerting.channel import Channel
from alerting.outbox import Outbox
from alerting.route import Route
from store.ports import Clock, Recorder

# Seconds; more than five attempts with the longest ``timeout`` of a sink, 120 s, and the waits between them.
DELIVERY_LIMIT = 660.0
LEAVING_KEPT = 8
WAITING = "farmd_alerts_waiting"

_log = structlog.get_logger()


class Router:
    """Satisfies ``alerting.alerter.Alerter``. Run ``run()`` as a task; ``close()`` empties the outboxes.

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
