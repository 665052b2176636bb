"""What a process tells people while its alerts' sinks break or are exchanged by a reload."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from alerting.alert import Alert
from alerting.sinks import SIGNATURE_HEADER
from farmd.config.alerts import SinkSection
from farmd.config.sections import AlertsSection, Config
from farmd.process.alerts import Alerting
from tests.credentials import mend, spoil
from tests.fleet import eventually
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock


class Buggy(CountingRecorder):
    """A recorder that fails once."""

    failed = False

    def count(self, name: str, value: float = 1, /, **labels: str) -> None:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError("once")
        super().count(name, value, **labels)


async def test_alerts_are_delivered_after_a_bug_in_the_router() -> None:
    clock, rng = VirtualClock(), random.Random(1)
    with capture_logs() as logged:
        alerter = Alerting(AlertsSection(sinks=[SinkSection(type="log")]), None, clock, rng, Buggy())  # type: ignore[arg-type]
        for key in ("one", "two"):
            await alerter.fire(Alert(summary=key, incident_key=key, urgency="high"))
            await clock.advance(5.0)
        await alerter.close()
    told = [line["incident_key"] for line in logged if line["event"] == "alert.firing"]
    assert told == ["one", "two"]
    assert [line for line in logged if line["event"] == "alerts.router_failed"]


class Receiver:
    """Stands in for ``aiohttp.ClientSession``, and for the answer of each post."""

    status = 200

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    def post(self, _url: str, **request: Any) -> Receiver:
        self.headers.append(request["headers"])
        return self

    async def __aenter__(self) -> Receiver:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("how", ["empty", "missing", "folder", "pipe"])
async def test_an_alert_waits_for_the_key_that_signs_it(tmp_path: Path, how: str) -> None:
    clock, receiver = VirtualClock(), Receiver()
    key = tmp_path / "key"
    spoil(key, how)
    sink = SinkSection(type="webhook", url="http://pager", secret_file=str(key))
    alerter = Alerting(AlertsSection(sinks=[sink]), receiver, clock, random.Random(1), CountingRecorder())  # type: ignore[arg-type]
    await alerter.fire(Alert(summary="one", incident_key="one", urgency="high"))
    await clock.advance(1.0)
    assert receiver.headers == []
    mend(key, b"\x00\xff binary")
    await clock.advance(10.0)
    (headers,) = receiver.headers
    assert headers[SIGNATURE_HEADER]
    await alerter.close()


class People:
    """A real HTTP server that keeps what it is told at each of its addresses; ``status`` is its answer."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.status = 200

    async def hear(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.status == 200:
            self.told.append((request.path, body["incident_key"], body["state"]))
        return web.Response(status=self.status)


async def test_an_alert_that_is_open_during_a_reload_ends_wherever_it_was_told() -> None:
    people, clock = People(), VirtualClock()
    app = web.Application()
    app.router.add_post("/{team}", people.hear)

    def config(team: str, **more: float) -> Config:
        url = str(server.make_url(f"/{team}"))
        return Config(alerts=AlertsSection([SinkSection(type="webhook", url=url, **more)]))

    async def until(*told: tuple[str, str, str]) -> None:
        async def so() -> bool:
            await clock.advance(60.0)
            return people.told == list(told)

        await eventually(so, what=f"{told}")

    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        alerter = Alerting(config("old").alerts, http, clock, random.Random(1), CountingRecorder())
        await alerter.fire(Alert(summary="one", incident_key="one"))
        await until(("/old", "one", "firing"))
        alerter.reload(config("old", timeout=20.0))
        alerter.reload(config("new"))
        await until(("/old", "one", "firing"), ("/new", "one", "firing"))
        people.told.clear()
        people.status = 503
        await alerter.resolve("one")
        await clock.advance(60.0)
        people.status = 200

        async def over() -> bool:
            await clock.advance(60.0)
            return sorted(people.told) == [("/new", "one", "resolved"), ("/old", "one", "resolved")]

        await eventually(over, what="the end at both")
        await alerter.close()
