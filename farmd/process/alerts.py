"""The alerter of a process, built from the configured sinks, which a reload can exchange."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import cast

import aiohttp
import structlog
from msgspec.structs import replace

from alerting.alert import Alert, Sink, Urgency
from alerting.errors import DeliveryFailed
from alerting.router import Route, Router
from alerting.sinks import (
    KEEP_SECONDS,
    AlertmanagerSink,
    LogSink,
    PagerDutySink,
    Poster,
    SlackSink,
    WebhookSink,
)
from alerting.sinks import URL as PAGERDUTY
from farmd.config.alerts import SECRET, SinkSection
from farmd.config.sections import AlertsSection, Config
from farmd.kinds import runbook
from store import selectors
from store.credentials import CredentialFiles, content, variable
from store.errors import CredentialInvalid
from store.ports import Clock, Recorder, Rng

log = structlog.get_logger()

RESTART_SECONDS = 1.0


class Alerting:
    """The alerter of a process, over sinks that a reload can exchange; satisfies ``Alerter``.

    ``address`` is this process's own, for links where the configuration names none.
    """

    def __init__(
        self,
        section: AlertsSection,
        http: aiohttp.ClientSession,
        clock: Clock,
        rng: Rng,
        recorder: Recorder,
        *,
        source: str = "",
        address: str = "",
    ) -> None:
        self._section = section
        self._address = address
        self._source = source
        self._http = http
        self._clock = clock
        self._rng = rng
        self._recorder = recorder
        self._router = Router(self._routes(), clock, recorder)
        self._task = asyncio.create_task(self._deliver(), name="alerts")

    async def fire(self, alert: Alert) -> None:
        """Send an alert to all sinks."""
        await self._router.fire(linked(alert, self._section.page or self._address))

    async def resolve(self, incident_key: str) -> None:
        """Report the end of an incident."""
        await self._router.resolve(incident_key)

    async def adopt(self, alert: Alert, *, anywhere: bool = False) -> None:
        """Take over an incident that another farm reported."""
        alert = linked(alert, self._section.page or self._address)
        await self._router.adopt(alert, anywhere=anywhere)

    async def forget(self, incident_key: str) -> None:
        """Drop an incident that another farm reports from now on."""
        await self._router.forget(incident_key)

    def release(self, incident_key: str) -> None:
        """Leave it to another farm to keep an incident alive."""
        self._router.release(incident_key)

    def owes(self, incident_key: str) -> bool:
        """Whether the end of the incident is not delivered everywhere yet."""
        return self._router.owes(incident_key)

    def reload(self, config: Config) -> None:
        """Use the new sinks; a removed sink still gets the ends of the incidents that it knows."""
        before, self._section = self._section, config.alerts
        if before.sinks != config.alerts.sinks:
            self._router.exchange(self._routes())

    async def close(self) -> None:
        """Deliver the remaining messages, for a few seconds at most."""
        await self._router.close()
        self._task.cancel()
        await asyncio.wait([self._task])

    def publish(self) -> None:
        """Write the metrics that only a scrape needs."""
        self._router.publish()

    def _routes(self) -> list[Route]:
        return [
            Route(
                sink_of(section, self._http, self._clock, self._rng, source=self._source, environ=os.environ),
                urgencies=frozenset(cast("list[Urgency]", section.urgencies)),
                receiver=_receiver(section),
                selector=selectors.parse(section.selector),
                keep=KEEP_SECONDS if section.type == "alertmanager" else 0.0,
            )
            for section in self._section.sinks
        ]

    async def _deliver(self) -> None:
        """The router's error boundary: log a bug in the router and begin to deliver again."""
        while True:
            try:
                await self._router.run()
            except Exception:
                log.exception("alerts.router_failed")
                await self._clock.sleep(RESTART_SECONDS)


def linked(alert: Alert, page: str) -> Alert:
    """An alert with its links: to the item on the page, and to what people can do."""
    base = page.rstrip("/")
    if not base:
        return alert
    links = {"page": base + (alert.path or "/"), "runbook": f"{base}/runbooks/{runbook(alert.name)}.md"}
    return replace(alert, links={**alert.links, **links})


def sink_of(
    section: SinkSection,
    http: aiohttp.ClientSession,
    clock: Clock,
    rng: Rng,
    *,
    source: str,
    environ: Mapping[str, str],
    attempts: int = 5,
) -> Sink:
    """The sink that a section describes; ``source`` is the reporting process."""
    poster = Poster(http, clock, rng, timeout=section.timeout, attempts=attempts)
    secret = _secret_of(section, environ)
    match section.type:
        case "log":
            return LogSink()
        case "webhook":
            return WebhookSink(poster, section.url, clock, secret=secret)
        case "pagerduty":
            return PagerDutySink(poster, secret, source, clock, url=section.url or PAGERDUTY)
        case "slack":
            return SlackSink(poster, secret, clock)
        case "alertmanager":
            return AlertmanagerSink(poster, section.url, source, clock)


def _receiver(section: SinkSection) -> str:
    """What tells receivers apart across reloads; the key that signs for one may change."""
    place = f"{section.type} {section.url}"
    if section.type not in SECRET:
        return place
    return f"{place} {section.secret.text} {section.secret_file} {section.secret_env}"


def _secret_of(section: SinkSection, environ: Mapping[str, str]) -> Callable[[], bytes]:
    """The secret of a sink; while its file is invalid, each delivery fails and is retried."""
    path, name = section.secret_file, section.secret_env
    if name:
        return lambda: _of_variable(environ, name)
    if not path:
        return section.secret.text.encode
    files = CredentialFiles([path], lambda: content("alerts.sinks.secret_file", path))

    def read() -> bytes:
        try:
            return files()
        except CredentialInvalid as error:
            raise DeliveryFailed(error.message) from error

    return read


def _of_variable(environ: Mapping[str, str], name: str) -> bytes:
    try:
        return variable("alerts.sinks.secret_env", name, environ)
    except CredentialInvalid as error:
        raise DeliveryFailed(error.message) from error
