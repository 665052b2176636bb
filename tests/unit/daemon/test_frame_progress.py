"""A loop that stops beating is seen, and only that one."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from farmd.observe.progress import METRIC, STALLED, Progress
from farmd.observe.recorder import Metrics


class Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return 1_000_000 + self.at

    def mono(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def progress(clock, registry) -> Progress:
    return Progress(clock, Metrics(registry))


def test_a_loop_stalls_after_its_limit_and_recovers_with_a_beat(clock, progress):
    loop = progress.loop("session", 10)
    clock.at += 10
    assert progress.stalled() == []
    clock.at += 0.1
    assert progress.stalled() == ["session"]
    loop.beat()
    assert progress.stalled() == []


def test_a_busy_loop_does_not_hide_a_silent_one_of_the_same_name(clock, progress):
    busy, _silent = progress.loop("watch", 10), progress.loop("watch", 10)
    clock.at += 11
    busy.beat()
    assert progress.stalled() == ["watch"]
    assert progress.ages() == {"watch": 11}


def test_a_closed_loop_is_not_expected_to_beat(clock, progress):
    with progress.loop("claims", 1):
        clock.at += 2
        assert progress.stalled() == ["claims"]
    assert progress.stalled() == []
    assert progress.ages() == {}


def test_the_metric_is_the_wall_time_of_the_slowest_beat(clock, progress, registry):
    progress.loop("sweep", 60)
    clock.at += 7
    progress.publish()
    assert registry.get_sample_value(METRIC, {"loop": "sweep"}) == 1_000_100


def test_a_stall_goes_by_the_limit_of_the_loop_and_not_by_its_age(clock, progress, registry):
    patient, hasty = progress.loop("health", 2000), progress.loop("reality", 10)
    clock.at += 900
    progress.publish()
    assert registry.get_sample_value(STALLED, {"loop": "health"}) == 0
    assert registry.get_sample_value(STALLED, {"loop": "reality"}) == 1
    hasty.beat()
    patient.close()
    progress.publish()
    assert registry.get_sample_value(STALLED, {"loop": "reality"}) == 0


def test_loops_that_ended_leave_no_old_progress_behind(clock, progress, registry):
    with progress.loop("health", 60):
        progress.publish()
    clock.at += 900
    progress.publish()
    assert registry.get_sample_value(METRIC, {"loop": "health"}) == clock.now()
