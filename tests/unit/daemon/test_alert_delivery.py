"""A bug below the alerts' sinks is told, and later alerts are delivered all the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from alerting.alert import Alert
from alerting.signature import SIGNATURE_HEADER
from farmd.alerts import Alerting
from farmd.config import SinkSection
from tests.credentials import mend, spoil
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
        alerter = Alerting([SinkSection(type="log")], None, clock, rng, Buggy())  # type: ignore[arg-type]
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
    alerter = Alerting([sink], receiver, clock, random.Random(1), CountingRecorder())  # type: ignore[arg-type]
    await alerter.fire(Alert(summary="one", incident_key="one", urgency="high"))
    await clock.advance(1.0)
    assert receiver.headers == []
    mend(key, b"\x00\xff binary")
    await clock.advance(10.0)
    (headers,) = receiver.headers
    assert headers[SIGNATURE_HEADER]
    await alerter.close()
