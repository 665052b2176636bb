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
from farmd.config.sections import Config, SinkSection
from store.credentials import CredentialFiles, content
from store.errors import CredentialInvalid
from store.ports import Clock, Recorder, Rng

log = structlog.get_logger()

RESTART_SECONDS = 1.0


class Alerting:
    """The alerter of a process, over sinks that a reload can exchange; satisfies ``Alerter``."""

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
        self._router = Router(self._routes(), clock, recorder)
        self._task = asyncio.create_task(self._deliver(), name="alerts")

    async def fire(self, alert: Alert) -> None:
        """Send an alert to all sinks."""
        await self._router.fire(alert)

    async def resolve(self, incident_key: str) -> None:
        """Report the end of an incident."""
        await self._router.resolve(incident_key)

    async def adopt(self, alert: Alert) -> None:
        """Take over an incident that another farm reported."""
        await self._router.adopt(alert)

    async def forget(self, incident_key: str) -> None:
        """Drop an incident that another farm reports from now on."""
        await self._router.forget(incident_key)

    def owes(self, incident_key: str) -> bool:
        """Whether the end of the incident is not delivered everywhere yet."""
        return self._router.owes(incident_key)

    def reload(self, config: Config) -> None:
        """Use the new sinks; a removed sink still gets the ends of the incidents that it knows."""
        if config.alerts.sinks != self._sections:
            self._sections = config.alerts.sinks
            self._router.exchange(self._routes())

    async def close(self) -> None:
        """Deliver the remaining messages, for a few seconds at most."""
        await self._router.close()
        self._task.cancel()
        await asyncio.wait([self._task])

    def _routes(self) -> list[Route]:
        return [
            Route(self._sink(section), receiver=f"{section.type} {section.url}") for section in self._sections
        ]

    async def _deliver(self) -> None:
        """The router's error boundary: log a bug in the router and begin to deliver again."""
        while True:
            try:
                await self._router.run()
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
    """The signing key of a webhook; while its file is invalid, each delivery fails and is retried."""
    path = section.secret_file
    if not path:
        return section.secret.text.encode
    files = CredentialFiles([path], lambda: content("alerts.sinks.secret_file", path))

    def read() -> bytes:
        try:
            return files()
        except CredentialInvalid as error:
            raise DeliveryFailed(error.message) from error

    return read
