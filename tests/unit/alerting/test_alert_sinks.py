"""PagerDuty, Slack and Alertmanager against an HTTP server that keeps what it gets, and misbehaves."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from alerting.alert import Alert, Sink
from alerting.errors import DeliveryFailed, DeliveryRefused
from alerting.sinks import (
    MAX_DEDUP_KEY,
    AlertmanagerSink,
    PagerDutySink,
    Poster,
    SlackSink,
    WebhookSink,
    dedup_key,
)
from store.times import rfc3339
from tests.still_clock import StillClock
from tests.web_servers import serving

NOW = 5_000.0
KEY = "0123456789abcdef0123456789abcdef"
ALERT = Alert(
    summary="controller <web> lacks nodes & room",
    incident_key="rc1",
    description="3 of 5",
    urgency="high",
    details={"rc_id": "rc1"},
    labels={"team": "web", "kind": "rcs"},
    item="rc/web",
    path="/controllers/web",
    links={"page": "https://farm/controllers/web", "runbook": "https://farm/runbooks/FarmdBlocked.md"},
    since=4_000.0,
)
Answer = Callable[[web.Request], web.StreamResponse | Exception | float]


class Receiver:
    """Answers as each of ``answers`` says in turn, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [lambda _: web.json_response({"status": "success"}, status=202)]
        self.got: list[tuple[str, Any]] = []
        self.release = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.got.append((request.path, json.loads(await request.read())))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        found = answer(request)
        if isinstance(found, float):
            await self.release.wait()
            return web.Response()
        if isinstance(found, Exception):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return found

    @property
    def bodies(self) -> list[Any]:
        return [body for _, body in self.got]


MADE: dict[str, Callable[[Poster, str, StillClock], Sink]] = {
    "webhook": lambda poster, url, clock: WebhookSink(poster, f"{url}/{KEY}", clock, secret=KEY.encode),
    "pagerduty": lambda poster, url, clock: PagerDutySink(
        poster, KEY.encode, "farm-1", clock, url=f"{url}/v2/enqueue"
    ),
    "slack": lambda poster, url, clock: SlackSink(poster, f"{url}/services/T0/B0/{KEY}".encode, clock),
    "alertmanager": lambda poster, url, clock: AlertmanagerSink(poster, f"{url}/", "farm-1", clock),
}


@asynccontextmanager
async def sink(kind: str, receiver: Receiver, **options: Any) -> AsyncIterator[tuple[Sink, StillClock]]:
    clock = StillClock(NOW)
    async with serving(receiver.handle) as url, aiohttp.ClientSession() as session:
        try:
            poster = Poster(session, clock, random.Random(1), **options)
            yield MADE[kind](poster, url, clock), clock
        finally:
            receiver.release.set()


async def test_pagerduty_gets_events_of_version_2_under_one_deduplication_key() -> None:
    receiver = Receiver()
    async with sink("pagerduty", receiver) as (pager, _):
        await pager.deliver(ALERT)
        await pager.deliver(ALERT.resolved())
    assert {path for path, _ in receiver.got} == {"/v2/enqueue"}
    trigger, resolve = receiver.bodies
    assert trigger == {
        "routing_key": KEY,
        "event_action": "trigger",
        "dedup_key": "rc1",
        "client": "farmd",
        "client_url": "https://farm/controllers/web",
        "links": [
            {"href": "https://farm/controllers/web", "text": "page"},
            {"href": "https://farm/runbooks/FarmdBlocked.md", "text": "runbook"},
        ],
        "payload": {
            "summary": "controller <web> lacks nodes & room",
            "source": "farm-1",
            "severity": "critical",
            "timestamp": "1970-01-01T01:23:20.000Z",
            "component": "rc/web",
            "class": "FarmdNoPlace",
            "custom_details": {"team": "web", "kind": "rcs", "rc_id": "rc1", "description": "3 of 5"},
        },
    }
    assert resolve == {"routing_key": KEY, "event_action": "resolve", "dedup_key": "rc1"}


async def test_pagerduty_knows_an_incident_before_it_is_acknowledged() -> None:
    receiver = Receiver()
    async with sink("pagerduty", receiver) as (pager, _):
        await pager.deliver(Alert(summary="one", incident_key="one", state="acknowledged"))
    assert [(each["event_action"], each["dedup_key"]) for each in receiver.bodies] == [
        ("trigger", "one"),
        ("acknowledge", "one"),
    ]
    assert receiver.bodies[0]["payload"]["severity"] == "warning"


def test_a_deduplication_key_fits_pagerduty_and_stays_unlike_others() -> None:
    long = [f"{'x' * 255}{last}" for last in "ab"]
    keys = {dedup_key(each) for each in long}
    assert len(keys) == 2
    assert {len(each) for each in keys} == {MAX_DEDUP_KEY}
    assert dedup_key("node_lost_n1") == "node_lost_n1"


async def test_slack_shows_texts_as_they_are_and_the_end_in_another_colour() -> None:
    receiver = Receiver(lambda _: web.Response(text="ok"))
    async with sink("slack", receiver) as (slack, _):
        await slack.deliver(ALERT)
        await slack.deliver(ALERT.resolved())
    assert {path for path, _ in receiver.got} == {f"/services/T0/B0/{KEY}"}
    firing, over = receiver.bodies
    assert firing["text"] == "*High urgency*: controller &lt;web&gt; lacks nodes &amp; room"
    (attachment,) = firing["attachments"]
    assert (attachment["color"], attachment["footer"]) == ("danger", "rc1")
    assert (attachment["title"], attachment["title_link"]) == ("rc/web", "https://farm/controllers/web")
    assert attachment["text"] == (
        "3 of 5\n<https://farm/controllers/web|page> · <https://farm/runbooks/FarmdBlocked.md|runbook>"
    )
    told = {each["title"]: each["value"] for each in attachment["fields"]}
    assert told == {"team": "web", "kind": "rcs", "rc_id": "rc1"}
    assert over["text"].startswith("*Resolved*: ")
    assert over["attachments"][0]["color"] == "good"


async def test_alertmanager_gets_each_alert_with_an_end_and_its_end_under_each_severity() -> None:
    receiver = Receiver(lambda _: web.Response())
    async with sink("alertmanager", receiver) as (manager, clock):
        await manager.deliver(ALERT)
        clock.seconds += 30
        await manager.deliver(ALERT.resolved())
    assert {path for path, _ in receiver.got} == {"/api/v2/alerts"}
    ((firing,), over) = receiver.bodies
    labels = {"alertname": "FarmdNoPlace", "incident_key": "rc1", "item": "rc/web", "team": "web"}
    labels |= {"kind": "rcs"}
    assert firing["labels"] == labels | {"severity": "critical"}
    assert firing["annotations"] == {
        "summary": ALERT.summary,
        "description": "3 of 5",
        "rc_id": "rc1",
        "farm": "farm-1",
        "page": "https://farm/controllers/web",
        "runbook_url": "https://farm/runbooks/FarmdBlocked.md",
    }
    assert {each["startsAt"] for each in (firing, *over)} == {rfc3339(4_000.0, "milliseconds")}
    assert firing["endsAt"] == rfc3339(NOW + 300, "milliseconds")
    assert [each["labels"] for each in over] == [
        labels | {"severity": name} for name in ("critical", "warning")
    ]
    assert {each["endsAt"] for each in over} == {rfc3339(NOW + 30, "milliseconds")}


def status(code: int, text: str = "", **headers: str) -> Answer:
    return lambda _: web.Response(
        status=code, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


@pytest.mark.parametrize("kind", MADE)
async def test_what_passes_is_tried_again(kind: str) -> None:
    receiver = Receiver(status(500), lambda _: OSError(), status(503), status(202))
    async with sink(kind, receiver) as (found, _):
        await found.deliver(ALERT)
    assert len(receiver.got) == 4
    assert all(each.keys() == receiver.bodies[0].keys() for each in receiver.bodies if isinstance(each, dict))


@pytest.mark.parametrize("kind", MADE)
async def test_a_receiver_that_hangs_costs_one_timeout_an_attempt(kind: str) -> None:
    receiver = Receiver(lambda _: 1.0)
    async with sink(kind, receiver, timeout=0.05, attempts=2) as (found, _):
        with pytest.raises(DeliveryFailed, match=r"no answer within 0\.05 s"):
            await found.deliver(ALERT)
    assert len(receiver.got) == 2


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(
    ("after", "seconds"), [("120", 120.0), ("86400", 3600.0), ("Thu, 01 Jan 1970 01:25:00 GMT", 100.0)]
)
async def test_retry_after_is_obeyed_and_ends_the_attempts(kind: str, after: str, seconds: float) -> None:
    receiver = Receiver(status(429, Retry_After=after))
    async with sink(kind, receiver) as (found, clock):
        with pytest.raises(DeliveryFailed, match="status 429") as failed:
            await found.deliver(ALERT)
        assert clock.seconds == NOW
    assert failed.value.after == seconds
    assert len(receiver.got) == 1


@pytest.mark.parametrize("after", ["soon", f"Thu, 01 Jan {'9' * 30} 00:00:00 GMT"])
async def test_a_retry_after_that_is_no_time_is_ignored(after: str) -> None:
    receiver = Receiver(status(429, Retry_After=after), status(202))
    async with sink("webhook", receiver) as (found, _):
        await found.deliver(ALERT)
    assert len(receiver.got) == 2


@pytest.mark.parametrize("kind", MADE)
async def test_a_refusal_tells_which_field_is_wrong_and_hides_secrets(kind: str) -> None:
    receiver = Receiver(status(400, f'{{"errors": ["payload.severity is invalid"],\n"for": "{KEY}"}}\x1b'))
    async with sink(kind, receiver) as (found, _):
        with pytest.raises(DeliveryRefused) as refused:
            await found.deliver(ALERT)
    text = refused.value.message
    assert text.startswith('status 400, expected 2xx: {"errors": ["payload.severity is invalid"], "for": ')
    assert "\n" not in text
    assert "\x1b" not in text
    assert (KEY in text) == (kind == "alertmanager")  # to which it is no secret
    assert len(receiver.got) == 1
