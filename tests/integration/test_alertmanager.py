"""A real Alertmanager: it has the incidents that are open, as long as they are, and no others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime

import aiohttp
import msgspec
import pytest

from alerting import outbox
from alerting import sinks as sink
from alerting.alert import Alert
from farmd.config.alerts import SinkSection
from farmd.config.sections import AlertsSection
from farmd.process import alerts as process
from farmd.process.alerts import Alerting
from farmd.runtime.clock import SystemClock
from tests.alertmanager import Alertmanager
from tests.farmctl import ROOT
from tests.fleet import LIMIT, eventually
from tests.recorders import CountingRecorder

pytestmark = pytest.mark.slow

PAGE = "https://farms.example"
LOW = Alert(summary="not enough nodes", incident_key="rc1", labels={"team": "web", "kind": "rcs"})
HIGH = Alert(summary="no leader", incident_key="freeze", urgency="high", labels={"kind": "failsafe"})


@pytest.fixture
def manager() -> Iterator[Alertmanager]:
    with Alertmanager() as server:
        yield server


@asynccontextmanager
async def alerting(manager: Alertmanager) -> AsyncIterator[Alerting]:
    section = AlertsSection([SinkSection(type="alertmanager", url=manager.url)], page=PAGE)
    async with aiohttp.ClientSession() as http:
        made = Alerting(section, http, SystemClock(), random.Random(1), CountingRecorder(), source="farm-1")
        try:
            yield made
        finally:
            await made.close()


async def has(manager: Alertmanager, *wanted: str) -> None:
    async def so() -> bool:
        return set(await manager.alerts()) == set(wanted)

    await eventually(so, what=f"the alerts {wanted}")


async def test_it_has_what_is_open_and_nothing_else(manager: Alertmanager) -> None:
    async with alerting(manager) as alerter:
        await alerter.fire(LOW)
        await alerter.fire(HIGH)
        await has(manager, "rc1 warning", "freeze critical")
        found = await manager.alerts()
        assert found["rc1 warning"]["labels"]["team"] == "web"
        assert found["freeze critical"]["annotations"]["summary"] == "no leader"
        await alerter.fire(msgspec.structs.replace(LOW, urgency="high"))
        await has(manager, "rc1 warning", "rc1 critical", "freeze critical")
        await alerter.resolve("rc1")
        await has(manager, "freeze critical")
        await alerter.resolve("freeze")
        await has(manager)


async def test_an_alert_names_its_sort_and_item_leads_to_page_and_runbook_and_keeps_its_beginning(
    manager: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KEEP_SECONDS", 1.0)
    crashes = Alert(
        summary="crash loop",
        incident_key="rc_crashes_4f8be7be",
        labels={"kind": "rcs"},
        item="rc/web",
        path="/controllers/web",
    )
    before = SystemClock().now()
    async with alerting(manager) as alerter:
        await alerter.fire(crashes)
        await has(manager, "rc_crashes_4f8be7be warning")
        (first,) = (await manager.alerts()).values()
        assert first["labels"] == {
            "alertname": "FarmdRcCrashes",
            "incident_key": "rc_crashes_4f8be7be",
            "item": "rc/web",
            "kind": "rcs",
            "severity": "warning",
        }
        assert first["annotations"]["page"] == first["generatorURL"] == f"{PAGE}/controllers/web"
        assert first["annotations"]["runbook_url"] == f"{PAGE}/runbooks/FarmdCrashLoop.md"
        assert before - 1 < datetime.fromisoformat(first["startsAt"]).timestamp() <= SystemClock().now()

        async def told_again() -> bool:
            (now,) = (await manager.alerts()).values()
            return bool(now["updatedAt"] > first["updatedAt"]) and now["startsAt"] == first["startsAt"]

        await eventually(told_again, what="a repeat that began at the same time")
    async with alerting(manager) as heir:
        await heir.adopt(crashes)
        await heir.fire(crashes)
        await eventually(told_again, what="the heir's alert, which began at the same time")


async def test_it_is_told_again_before_it_forgets_and_forgets_what_nobody_tells(
    manager: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KEEP_SECONDS", 1.0)
    monkeypatch.setattr(sink, "LASTS_SECONDS", 3.0)

    async def later_than(before: str) -> str:
        async def so() -> bool:
            found = await manager.alerts()
            return found["rc1 warning"]["endsAt"] > before

        await eventually(so, what="another end")
        told: str = (await manager.alerts())["rc1 warning"]["endsAt"]
        return told

    async with alerting(manager) as alerter:
        await alerter.fire(LOW)
        await has(manager, "rc1 warning")
        ends = ""
        for _ in range(4):  # for longer than it would keep one message
            ends = await later_than(ends)
    await has(manager)


async def test_it_gets_the_state_of_now_after_it_was_away(
    manager: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "LONGEST_PAUSE", 1.0)
    failed = Failed(process.Poster)
    monkeypatch.setattr(process, "Poster", failed)
    async with alerting(manager) as alerter:
        await alerter.fire(LOW)
        await has(manager, "rc1 warning")
        manager.kill()
        await alerter.fire(HIGH)
        await alerter.resolve("rc1")
        await asyncio.wait_for(failed.seen.wait(), LIMIT)
        await asyncio.to_thread(manager.start)
        await has(manager, "freeze critical")


async def test_our_configuration_tells_of_a_fault_of_the_fleet_once_and_sends_the_heartbeat() -> None:
    """Two thousand nodes without Consul are one notification, and the heartbeat is another."""
    posted = [
        {"labels": {"alertname": name, "severity": severity, "instance": f"node/n{number}"}}
        for name, severity, count in (
            ("FarmdStoreDown", "critical", 1),
            ("FarmdHeartbeat", "info", 1),
            ("FarmdStoreErrors", "warning", 2000),
            ("FarmdOwnerDown", "critical", 20),
        )
        for number in range(count)
    ]
    with Alertmanager((ROOT / "monitoring/alertmanager.yml").read_text()) as server:
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{server.url}/api/v2/alerts", json=posted) as answer:
                assert answer.status == 200

            async def notified() -> bool:
                """The groups with an alert that nothing holds back, with their receivers."""
                async with http.get(f"{server.url}/api/v2/alerts/groups?inhibited=false") as answer:
                    groups = await answer.json()
                told = {(each["labels"]["alertname"], each["receiver"]["name"]) for each in groups}
                return told == {("FarmdStoreDown", "nobody"), ("FarmdHeartbeat", "heartbeat")}

            await eventually(notified, what="two groups")


class Failed:
    """Makes posters that try once, and tells of a post that failed."""

    def __init__(self, poster: Callable[..., process.Poster]) -> None:
        self._poster = poster
        self.seen = asyncio.Event()

    def __call__(self, *words: object, **options: object) -> process.Poster:
        made = self._poster(*words, **{**options, "attempts": 1})
        post = made.post

        async def told(message: Callable[[], sink.Message]) -> None:
            try:
                await post(message)
            except Exception:
                self.seen.set()
                raise

        made.post = told  # type: ignore[method-assign]
        return made
