"""A worker never waits for a receiver, and one sink's trouble is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog

from alerting.alert import Alert
from alerting.errors import DeliveryFailed
from alerting.router import LEAVING_KEPT, Route, Router
from alerting.sinks import LogSink
from farmd.observe.metrics import table
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock

SENT = "farmd_alerts_sent_total"
LOW = Alert(summary="not enough nodes", incident_key="rc1")
HIGH = Alert(summary="no leader", incident_key="no_leader", urgency="high")


class ListSink:
    """Keeps what it is given; ``gate`` holds deliveries back, ``broken`` is raised instead."""

    def __init__(self, name: str, broken: Exception | None = None) -> None:
        self.name = name
        self.broken = broken
        self.got: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False

    async def deliver(self, alert: Alert) -> None:
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        self.got.append((alert.incident_key, alert.state))

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def running(router: Router) -> AsyncIterator[Router]:
    task = asyncio.create_task(router.run())
    try:
        yield router
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_firing_and_resolving_reach_every_sink_in_order_and_are_counted() -> None:
    one, two, recorder = ListSink("log"), ListSink("webhook"), CountingRecorder()
    async with running(Router([Route(one), Route(two)], VirtualClock(), recorder)) as router:
        await router.fire(LOW)
        await router.fire(LOW)
        await router.resolve("rc1")
        await router.resolve("rc1")
        await router.resolve("never fired")
        await router.drain()
    assert one.got == two.got == [("rc1", "firing"), ("rc1", "resolved")]
    counted = {key[1:]: number for key, number in recorder.counts.items()}
    assert {key: n for key, n in counted.items() if "log" in key} == {
        ("sent", "log"): 1,
        ("duplicate", "log"): 1,
        ("resolved", "log"): 1,
    }


async def test_urgency_decides_which_sink_is_told() -> None:
    pager, log = ListSink("webhook"), ListSink("log")
    routes = [Route(pager, frozenset({"high"})), Route(log)]
    async with running(Router(routes, VirtualClock(), CountingRecorder())) as router:
        await router.fire(LOW)
        await router.fire(HIGH)
        await router.resolve("rc1")
        await router.drain()
    assert pager.got == [("no_leader", "firing")]
    assert log.got == [("rc1", "firing"), ("no_leader", "firing"), ("rc1", "resolved")]


async def test_a_hanging_sink_blocks_neither_the_worker_nor_the_others() -> None:
    stuck, fine, recorder = ListSink("webhook"), ListSink("log"), CountingRecorder()
    stuck.gate.clear()
    router = Router([Route(stuck), Route(fine)], VirtualClock(), recorder, capacity=3)
    async with running(router):
        for number in range(10):
            await router.fire(Alert(summary="s", incident_key=f"rc{number}"))
            await asyncio.wait_for(_until(lambda want=number + 1: len(fine.got) == want), 5)
        assert recorder.counts[(SENT, "failed", "webhook")] == 10 - 3  # as many as there is room for wait
        stuck.gate.set()
        await router.drain()
        assert [key for key, _ in stuck.got[-3:]] == ["rc7", "rc8", "rc9"]
        await router.fire(Alert(summary="s", incident_key="rc1"))  # what was forgotten is still news
        await router.drain()
    assert ("rc1", "firing") in stuck.got


@pytest.mark.parametrize("broken", [DeliveryFailed("status 503"), RuntimeError("a bug")])
async def test_what_a_failing_sink_must_know_is_told_when_it_works_again(broken: Exception) -> None:
    bad, good, recorder, clock = ListSink("webhook"), ListSink("log"), CountingRecorder(), VirtualClock()
    async with running(Router([Route(bad), Route(good)], clock, recorder)) as router:
        bad.broken = broken
        await router.fire(LOW)
        await clock.advance(60)
        bad.broken = None
        await clock.advance(60)
        assert bad.got == good.got == [("rc1", "firing")]
        bad.broken = broken
        await router.resolve("rc1")
        await clock.advance(86_400)
        assert router.owes("rc1")
        bad.broken = None
        await clock.advance(300)
        assert not router.owes("rc1")
    assert bad.got == good.got == [("rc1", "firing"), ("rc1", "resolved")]
    assert recorder.counts[(SENT, "resolved", "webhook")] == 1


async def test_sinks_are_exchanged_and_nobody_is_left_with_an_incident_that_is_over() -> None:
    stays, goes, comes, again = (ListSink("webhook") for _ in range(4))
    clock = VirtualClock()
    routes = [Route(stays, receiver="stays"), Route(goes, receiver="goes")]
    async with running(Router(routes, clock, CountingRecorder())) as router:
        await router.fire(LOW)
        await router.drain()
        router.exchange([Route(comes, receiver="comes"), Route(again, receiver="stays")])
        await router.fire(LOW)
        await router.fire(HIGH)
        await clock.settle()
        goes.broken = DeliveryFailed("status 503")
        await router.resolve("rc1")
        await clock.advance(60)
        assert (goes.got, goes.closed) == ([("rc1", "firing")], False)
        assert not router.owes("rc1")
        goes.broken = None
        await clock.advance(300)
    told = [("rc1", "firing"), ("no_leader", "firing"), ("rc1", "resolved")]
    assert (goes.got, goes.closed) == ([("rc1", "firing"), ("rc1", "resolved")], True)
    assert comes.got == told
    assert stays.got + again.got == told


async def test_a_sink_that_is_left_and_taken_again_hears_what_it_missed() -> None:
    sink, clock = ListSink("webhook"), VirtualClock()
    async with running(Router([Route(sink, receiver="one")], clock, CountingRecorder())) as router:
        await router.fire(LOW)
        await router.drain()
        other = ListSink("log")
        router.exchange([Route(other, receiver="two")])
        await router.fire(HIGH)
        await router.drain()
        router.exchange([Route(sink, receiver="one")])
        await router.resolve("rc1")
        await router.drain()
    assert sink.got == [("rc1", "firing"), ("no_leader", "firing"), ("rc1", "resolved")]
    assert other.got == [("rc1", "firing"), ("no_leader", "firing"), ("rc1", "resolved")]


async def test_a_sink_that_forgets_and_is_taken_again_is_kept_informed() -> None:
    sink, clock = ListSink("alertmanager"), VirtualClock()
    route = Route(sink, receiver="one", keep=60.0)
    async with running(Router([route], clock, CountingRecorder())) as router:
        await router.fire(LOW)
        await router.fire(HIGH)
        await router.drain()
        router.release("no_leader")
        router.exchange([])
        await clock.advance(600)
        assert len(sink.got) == 2
        router.exchange([route])
        await clock.advance(90)
    assert sink.got[2:] == [("rc1", "firing")] * 2


async def test_sinks_that_are_left_are_bounded_in_number() -> None:
    sinks = [ListSink("webhook") for _ in range(LEAVING_KEPT + 3)]
    clock = VirtualClock()
    async with running(Router([Route(sinks[0], receiver="0")], clock, CountingRecorder())) as router:
        await router.fire(LOW)
        for number, sink in enumerate(sinks):
            router.exchange([Route(sink, receiver=str(number))])
            await clock.settle()
        await router.resolve("rc1")
        await clock.settle()
    heard = [sink.got == [("rc1", "firing"), ("rc1", "resolved")] for sink in sinks]
    assert heard == [False] * 2 + [True] * (LEAVING_KEPT + 1)


async def test_a_delivery_has_a_time_limit() -> None:
    stuck, recorder = ListSink("webhook"), CountingRecorder()
    stuck.gate.clear()
    router = Router([Route(stuck)], VirtualClock(), recorder, delivery_limit=0.01)
    async with running(router):
        await router.fire(LOW)
        await asyncio.wait_for(router.drain(), 5)
    assert recorder.counts[(SENT, "failed", "webhook")] == 1


async def test_closing_delivers_what_is_queued_and_gives_up_on_what_hangs() -> None:
    stuck, fine = ListSink("webhook"), ListSink("log")
    stuck.gate.clear()
    router = Router([Route(stuck), Route(fine)], VirtualClock(), CountingRecorder())
    async with running(router):
        await router.fire(LOW)
        await asyncio.wait_for(router.close(grace=0.05), 5)
    assert fine.got == [("rc1", "firing")]
    assert stuck.closed
    assert fine.closed


async def test_the_log_sink_writes_one_constant_event_by_urgency() -> None:
    with structlog.testing.capture_logs() as lines:
        for alert in (LOW, HIGH, HIGH.resolved()):
            await LogSink().deliver(alert)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("alert.firing", "warning"),
        ("alert.firing", "error"),
        ("alert.resolved", "info"),
    ]


def test_results_and_sinks_stay_inside_the_metrics_closed_sets() -> None:
    labels = next(metric.labels for metric in table() if metric.name == SENT)
    assert {"sent", "failed", "duplicate", "resolved"} <= set(labels["result"])
    assert {"log", "webhook"} <= set(labels["sink"])


async def _until(true) -> None:  # type: ignore[no-untyped-def]
    while not true():
        await asyncio.sleep(0)
