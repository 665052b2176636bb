"""A sink gets the state of now: after an hour without it, under floods, and as long as an incident lasts."""

from __future__ import annotations

import random
from collections.abc import Callable

import aiohttp
import msgspec
import pytest

from alerting.alert import Alert
from alerting.outbox import MINUTE, MOST_A_MINUTE, Outbox
from alerting.router import Route, Router
from alerting.sinks import Poster
from store.selectors import parse
from tests.fleet import eventually
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock
from tests.unit.alerting.test_alert_outbox import LOW, send
from tests.unit.alerting.test_alert_router import ListSink, running
from tests.unit.alerting.test_alert_sinks import MADE, Receiver, status
from tests.virtual import VirtualClock
from tests.web_servers import serving

HOUR = 3600.0


def alert(key: str, summary: str = "trouble", **fields: object) -> Alert:
    return Alert(summary=summary, incident_key=key, **fields)  # type: ignore[arg-type]


KEYS: dict[str, Callable[[object], set[str]]] = {
    "pagerduty": lambda body: {f"{body['event_action']} {body['dedup_key']}"},  # type: ignore[index]
    "slack": lambda body: {f"{body['text'].split(':')[0].strip('*')} {body['attachments'][0]['footer']}"},  # type: ignore[index]
    "alertmanager": lambda body: {each["labels"]["incident_key"] for each in body},  # type: ignore[attr-defined]
}
FIRING = {"pagerduty": "trigger", "slack": "Low urgency", "alertmanager": ""}
OVER = {"pagerduty": "resolve", "slack": "Resolved", "alertmanager": ""}


@pytest.mark.parametrize("kind", KEYS)
async def test_a_sink_that_is_down_for_an_hour_gets_the_state_of_now_with_ends(kind: str) -> None:
    """What began and ended meanwhile comes to nothing; what it knew ends; what goes on is as it is now."""
    clock, receiver = VirtualClock(), Receiver(status(202))
    async with serving(receiver.handle) as url, aiohttp.ClientSession() as http:
        made = MADE[kind](Poster(http, clock, random.Random(1), attempts=1), url, clock)  # type: ignore[arg-type]
        async with running(Router([Route(made)], clock, CountingRecorder())) as router:

            async def heard(count: int) -> None:
                async def so() -> bool:
                    await clock.advance(30.0)
                    return len(receiver.got) >= count

                await eventually(so, what=f"{count} messages")

            await router.fire(alert("known"))
            await heard(1)
            receiver.answers = [status(503)]
            for minute in range(60):
                await router.fire(alert("late", f"late for {minute} minutes"))
                if minute == 5:
                    await router.fire(alert("gone"))
                if minute == 20:
                    await router.resolve("known")
                    await router.resolve("gone")
                await clock.advance(60.0)
            await heard(2)
            receiver.got.clear()
            receiver.answers = [status(202)]
            await heard(2)
            await clock.advance(600.0)
    told = sorted(key for body in receiver.bodies for key in KEYS[kind](body))
    ends = {f"{OVER[kind]} known".strip()}
    assert ends | {f"{FIRING[kind]} late".strip()} <= set(told)
    assert set(told) <= ends | {f"{FIRING[kind]} late".strip(), f"{OVER[kind]} gone".strip()}
    assert "late for 59 minutes" in str(receiver.bodies)


def test_what_waits_is_as_the_incident_is_now() -> None:
    clock = StillClock()
    outbox = Outbox(clock)
    outbox.fire(LOW)
    send(outbox, fails=True)
    outbox.fire(msgspec.structs.replace(LOW, summary="worse"))
    clock.seconds += HOUR
    incident = outbox.take()
    assert incident is not None
    assert incident.message().summary == "worse"


def test_an_incident_that_flaps_has_a_few_messages_a_minute_and_the_last_word_comes() -> None:
    clock = StillClock(1_000.0)
    outbox, sent = Outbox(clock), list[tuple[float, str]]()
    for second in range(600):
        (outbox.fire if second % 2 else lambda each: outbox.resolve(each.incident_key))(LOW)
        sent += [(clock.seconds, state) for _, state in send(outbox)]
        clock.seconds += 1
    outbox.resolve(LOW.incident_key)
    for _ in range(120):
        sent += [(clock.seconds, state) for _, state in send(outbox)]
        clock.seconds += 1
    times = [at for at, _ in sent]
    assert all(sum(at <= each < at + MINUTE for each in times) <= MOST_A_MINUTE for at in times)
    assert len(sent) >= 9 * MOST_A_MINUTE
    assert sent[-1][1] == "resolved"
    assert len(outbox) == 0


def test_other_incidents_are_not_held_back_by_one_that_flaps() -> None:
    clock = StillClock(1_000.0)
    outbox = Outbox(clock)
    for _ in range(20):
        outbox.fire(LOW)
        send(outbox)
        outbox.resolve(LOW.incident_key)
        send(outbox)
    outbox.fire(alert("other"))
    assert send(outbox) == [("other", "firing")]


def test_a_sink_that_forgets_is_told_again_until_the_end_though_the_worker_is_silent() -> None:
    clock = StillClock(1_000.0)
    outbox = Outbox(clock, keep=60)
    outbox.fire(alert("a"))
    outbox.adopt(alert("b"))
    assert send(outbox) == [("a", "firing")]
    assert outbox.wait() == 60
    outbox.fire(alert("a", "worse"))
    clock.seconds += 60
    assert sorted(send(outbox)) == [("a", "firing"), ("b", "firing")]
    assert outbox.wait() == 60
    outbox.resolve("a")
    assert send(outbox) == [("a", "resolved")]
    clock.seconds += 60
    assert send(outbox) == [("b", "firing")]
    outbox.resolve("b")
    send(outbox)
    assert outbox.wait() == float("inf")


@pytest.mark.parametrize("again", [Outbox.fire, Outbox.adopt])
def test_a_sink_that_forgets_is_told_again_only_while_a_worker_here_has_the_incident(
    again: Callable[[Outbox, Alert], object],
) -> None:
    clock = StillClock(1_000.0)
    outbox = Outbox(clock, keep=60)
    outbox.fire(alert("a"))
    send(outbox)
    clock.seconds += 60
    send(outbox, fails=True)
    outbox.release("a")
    assert outbox.wait() == float("inf")
    clock.seconds += HOUR
    assert send(outbox) == []
    assert outbox.going_on() == []
    again(outbox, alert("a"))
    clock.seconds += 60
    assert send(outbox) == [("a", "firing")]
    assert outbox.wait() == 60
    outbox.release("a")
    outbox.resolve("a")
    assert send(outbox) == [("a", "resolved")]


def test_a_beginning_that_no_sink_got_is_delivered_after_its_worker_ended_and_then_left() -> None:
    clock = StillClock(1_000.0)
    outbox = Outbox(clock, keep=60)
    outbox.fire(alert("a"))
    outbox.release("a")
    assert send(outbox) == [("a", "firing")]
    assert outbox.wait() == float("inf")


async def test_a_receiver_that_asks_to_be_left_alone_is() -> None:
    clock, receiver = VirtualClock(), Receiver(status(429, Retry_After="600"), status(202))
    begun = clock.mono()
    async with serving(receiver.handle) as url, aiohttp.ClientSession() as http:
        made = MADE["pagerduty"](Poster(http, clock, random.Random(1)), url, clock)  # type: ignore[arg-type]
        async with running(Router([Route(made)], clock, CountingRecorder())) as router:
            for key in ("one", "two", "three"):
                await router.fire(alert(key))

            async def all_there() -> bool:
                await clock.advance(10.0)
                return len(receiver.got) == 4

            await eventually(all_there, what="all three")
    assert clock.mono() - begun >= 600


async def test_alerts_are_routed_by_urgency_and_by_labels() -> None:
    high, web_team, rest, recorder = (
        ListSink("pagerduty"),
        ListSink("slack"),
        ListSink("log"),
        CountingRecorder(),
    )
    routes = [
        Route(high, urgencies=frozenset({"high"})),
        Route(web_team, selector=parse("team=web,kind in (rcs,jobs)")),
        Route(rest, selector=parse("!team")),
    ]
    async with running(Router(routes, VirtualClock(), recorder)) as router:
        await router.fire(alert("a", urgency="high", labels={"team": "web", "kind": "rcs"}))
        await router.fire(alert("b", labels={"team": "web", "kind": "nodes"}))
        await router.fire(alert("c", labels={"kind": "failsafe"}, urgency="high"))
        for key in "abc":
            await router.resolve(key)
        await router.drain()
        router.publish()
    assert high.got == [("a", "firing"), ("c", "firing"), ("a", "resolved"), ("c", "resolved")]
    assert web_team.got == [("a", "firing"), ("a", "resolved")]
    assert rest.got == [("c", "firing"), ("c", "resolved")]
    assert recorder.values["farmd_alerts_waiting", "slack"] == 0
