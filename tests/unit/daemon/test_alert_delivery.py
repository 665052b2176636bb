"""A bug below the alerts' sinks is told, and later alerts are delivered all the same."""

from __future__ import annotations

import random

from structlog.testing import capture_logs

from alerting.alert import Alert
from farmd.alerts import Alerting
from farmd.config import SinkSection
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
