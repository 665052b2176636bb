"""Around the work: the watchdog is fed only while all loops progress, a stop that hangs can be forced."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from prometheus_client import CollectorRegistry

from farmd.config.sources import ConfigInvalid, load
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.process import lifecycle
from farmd.process.lifecycle import Life, Notifier
from tests.fleet import in_time
from tests.virtual import VirtualClock


class Ear(Notifier):
    """A notifier that keeps what it would send."""

    def __init__(self, watchdog_seconds: float = 0.0) -> None:
        super().__init__("", watchdog_seconds)
        self.sent: list[str] = []

    def _send(self, *assignments: str) -> None:
        self.sent += assignments


class Work:
    """A service that does what its test tells it."""

    def __init__(self, *, hangs: bool = False, error: Exception | None = None) -> None:
        self.hangs, self.error = hangs, error
        self.is_up = False

    def lacks(self) -> str:
        return "" if self.is_up else "waiting for its turn"

    async def run(self, stop: asyncio.Event) -> None:
        if self.error is not None:
            raise self.error
        await stop.wait()
        while self.hangs:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            self.hangs = False


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def life(clock, registry) -> Life:
    metrics = Metrics(registry)
    return Life(load(None, {}), lambda: load(None, {}), Ear(30), Progress(clock, metrics), clock, metrics)


async def test_the_watchdog_is_fed_only_while_every_loop_makes_progress(life, clock):
    loop = life.progress.loop("session", 10)
    task = asyncio.create_task(lifecycle.watch_over(life))
    await clock.advance(10)
    fed = life.notifier.sent.count("WATCHDOG=1")
    assert fed >= 2
    await clock.advance(30)
    starved = life.notifier.sent.count("WATCHDOG=1")
    assert starved <= fed + 1
    loop.beat()
    await clock.advance(5)
    assert life.notifier.sent.count("WATCHDOG=1") == starved + 1
    task.cancel()
    await asyncio.wait([task])


async def test_a_clean_stop_waits_for_the_work(life, clock):
    task = asyncio.create_task(lifecycle.run(Work(), life))
    await clock.settle()
    assert not task.done()
    life.stop.set()
    assert await in_time(task) is True


async def test_a_stop_that_hangs_can_be_forced(life, clock):
    task = asyncio.create_task(lifecycle.run(Work(hangs=True), life))
    await clock.settle()
    life.stop.set()
    await clock.settle()
    assert not task.done()
    life.forced.set()
    assert await in_time(task) is False


async def test_an_error_of_the_work_ends_the_process(life):
    with pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(lifecycle.run(Work(error=ValueError("boom")), life), 5)


async def test_readiness_comes_and_goes_with_the_service(life, clock):
    work = Work()
    task = asyncio.create_task(lifecycle.run(work, life))
    await clock.settle()
    assert "STATUS=waiting for its turn" in life.notifier.sent
    work.is_up = True
    await clock.advance(1)
    assert life.waiting_for == ""
    assert "STATUS=ready" in life.notifier.sent
    work.is_up = False
    await clock.advance(1)
    assert life.waiting_for == "waiting for its turn"
    life.stop.set()
    await in_time(task)


def test_a_reload_tells_everybody_who_asked(life, registry):
    life.load = lambda: load(None, {"FARMD_LOG__LEVEL": "warning"})
    told = []
    life.on_reload.append(told.append)
    lifecycle.reload(life)
    assert [config.log.level for config in told] == ["warning"]
    assert life.config.log.level == "warning"
    assert [line for line in life.notifier.sent if line in ("RELOADING=1", "READY=1")] == [
        "RELOADING=1",
        "READY=1",
    ]
    assert registry.get_sample_value("farmd_config_reloads_total", {"result": "applied"}) == 1


def test_a_reload_of_an_invalid_configuration_changes_nothing(life, registry):
    def refuse():
        raise ConfigInvalid(["farm.ttl: found 1, expected more"])

    before, life.load = life.loaded, refuse
    told = []
    life.on_reload.append(told.append)
    lifecycle.reload(life)
    assert (life.loaded, told) == (before, [])
    assert registry.get_sample_value("farmd_config_reloads_total", {"result": "refused"}) == 1
    assert life.notifier.sent[-2] == "READY=1"
