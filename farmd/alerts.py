"""The alerter of a process, built from the configured sinks, which a reload can exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import structlog

from alerting.alert import Alert
from alerting.alerter import Sink
from alerting.errors import DeliveryFailed
from alerting.router import Route, Router
from alerting.sinks.log import LogSink
from alerting.sinks.webhook import WebhookSink
from farmd.config import Config, SinkSection
from store.credentials import CredentialFiles, content
from store.errors import CredentialInvalid
from store.ports import Clock, Recorder, Rng

log = structlog.get_logger()

RESTART_SECONDS = 1.0


class Alerting:
    """The alerter of a process, over sinks that a reload can exchange; satisfies ``Alerter``.

    A new set of sinks remembers nothing: what still fires is told again, once.
    """

    def __init__(
        self,
        sinks: list[SinkSection],
        http: aiohttp.ClientSession,
        clock: Clock,
        rng: Rng,
        recorder: Recorder,
    ) -> None:
        self._sections = sinks
        self._http = http
        self._clock = clock
        self._rng = rng
        self._recorder = recorder
        self._router, self._task = self._start()
        self._retired: set[asyncio.Task[None]] = set()

    async def fire(self, alert: Alert) -> None:
        """Tell somebody."""
        await self._router.fire(alert)

    async def resolve(self, incident_key: str) -> None:
        """The incident is over."""
        await self._router.resolve(incident_key)

    async def adopt(self, alert: Alert) -> None:
        """Somebody else has told it."""
        await self._router.adopt(alert)

    async def forget(self, incident_key: str) -> None:
        """It is somebody else's to tell by now."""
        await self._router.forget(incident_key)

    def reload(self, config: Config) -> None:
        """Use the new sinks; the old ones deliver what they have."""
        if config.alerts.sinks == self._sections:
            return
        self._sections = config.alerts.sinks
        old = asyncio.create_task(_retire(self._router, self._task))
        self._retired.add(old)
        old.add_done_callback(self._retired.discard)
        self._router, self._task = self._start()

    async def close(self) -> None:
        """Deliver what is queued, for a few seconds at most."""
        await asyncio.gather(_retire(self._router, self._task), *self._retired)

    def _start(self) -> tuple[Router, asyncio.Task[None]]:
        sinks = [self._sink(section) for section in self._sections]
        router = Router([Route(sink) for sink in sinks], self._clock, self._recorder)
        return router, asyncio.create_task(self._deliver(router), name="alerts")

    async def _deliver(self, router: Router) -> None:
        """The boundary of the router: a bug in it is told, and delivery begins again."""
        while True:
            try:
                await router.run()
            except Exception:
                log.exception("alerts.router_failed")
                await self._clock.sleep(RESTART_SECONDS)

    def _sink(self, section: SinkSection) -> Sink:
        if section.type == "log":
            return LogSink()
        return WebhookSink(
            self._http,
            section.url,
            self._clock,
            self._rng,
            secret=_secret_of(section),
            timeout=section.timeout,
        )


def _secret_of(section: SinkSection) -> Callable[[], bytes]:
    """The key of a webhook; an attempt to deliver fails while its file is not good."""
    path = section.secret_file
    if not path:
        return section.secret.get_secret_value().encode
    files = CredentialFiles([path], lambda: content("alerts.sinks.secret_file", path))

    def read() -> bytes:
        try:
            return files()
        except CredentialInvalid as error:
            raise DeliveryFailed(error.message) from error

    return read


async def _retire(router: Router, task: asyncio.Task[None]) -> None:
    await router.close()
    task.cancel()
    await asyncio.wait([task])
