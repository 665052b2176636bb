"""A bug in a health check is told as the pod's health and ends no checking."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from farmd.agent.disk import Disk
from farmd.agent.health import Damper
from farmd.agent.model import Identity, Record
from farmd.agent.pod import Pod
from farmd.agent.runtimes.process import Processes
from farmd.agent.runtimes.runtime import Runtimes
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from farmd.agent.watcher import CheckResult, HealthWatcher
from farmd.observe.progress import Progress
from store.manifests import HealthCheck, Manifest
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock


class Buggy:
    """A checker whose first check has a bug; later ones pass."""

    checks = 0

    async def check(self, check: HealthCheck, target: Any) -> CheckResult:
        self.checks += 1
        if self.checks == 1:
            raise ZeroDivisionError("first")
        return CheckResult("passing", "ok")


class Failing:
    """A checker whose checks all fail."""

    async def check(self, check: HealthCheck, target: Any) -> CheckResult:
        return CheckResult("failing", "HTTP 503")


def watching(folder: Path, clock: VirtualClock, checker: Any, recorder: CountingRecorder) -> HealthWatcher:
    """A watcher of the instance ``web``."""
    state = StateDirectory(folder)
    state.instances.mkdir()
    state.create("web")
    return HealthWatcher(
        runtimes=Runtimes(Processes(state, "n1", {}, clock, Users(share=True))),
        checker=checker,
        state=state,
        manifests=None,  # type: ignore[arg-type]
        clock=clock,
        rng=random.Random(1),
        recorder=recorder,
        progress=Progress(clock, recorder),
        wake=lambda: None,
    )


def checked(check: HealthCheck, clock: VirtualClock) -> Pod:
    """A pod that has just started."""
    manifest = Manifest(id="web", command=["sleep", "1"], health=check)
    record = Record(instance="web", manifest="m", started=clock.now())
    pod = Pod(record, Damper(clock.mono()), manifest=manifest)
    pod.identity = Identity(instance="web", manifest="m", start="s1", started=0.0)
    return pod


async def test_r22_checking_goes_on_after_a_bug_in_a_check(tmp_path: Path) -> None:
    clock, checker = VirtualClock(), Buggy()
    watcher = watching(tmp_path, clock, checker, CountingRecorder())
    pod = checked(HealthCheck(type="exec", command=["true"], interval=5.0), clock)
    watcher.begin(pod)
    while checker.checks < 1:
        await clock.advance(1.0)
    assert (pod.health.state, "ZeroDivisionError" in pod.health.reason) == ("unknown", True)
    await clock.advance(60.0)
    assert pod.health.state == "passing"
    watcher.end(pod)


async def test_a_pod_in_its_start_period_is_counted_as_unknown_however_many_checks_fail(
    tmp_path: Path,
) -> None:
    clock, recorder = VirtualClock(), CountingRecorder()
    watcher = watching(tmp_path, clock, Failing(), recorder)
    pod = checked(HealthCheck(type="http", port="http", interval=5.0, start_period=600.0), clock)
    watcher.begin(pod)

    def counted() -> dict[str, float]:
        watcher.publish(pod, clock.mono())
        watcher.count([pod])
        return {name[1]: value for name, value in recorder.values.items() if name[0] == "farmd_checked_pods"}

    await clock.advance(590.0)
    assert recorder.counts["farmd_health_checks_total", "failing", "http"] > 1000
    assert counted() == {"passing": 0, "critical": 0, "unknown": 1}
    await clock.advance(60.0)
    assert counted() == {"passing": 0, "critical": 1, "unknown": 0}
    watcher.end(pod)
    assert counted() == {"passing": 0, "critical": 0, "unknown": 0}


async def test_r26_a_disk_that_went_silent_during_a_start_leaves_its_health_to_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    watcher = watching(tmp_path, clock, Failing(), CountingRecorder())
    pod = checked(HealthCheck(type="http", port="http", interval=5.0), clock)
    monkeypatch.setattr(Disk, "silent", True)
    watcher.begin(pod)
    assert pod.health.state == "unknown"
    await clock.advance(60.0)
    assert pod.health.state == "critical"
    watcher.end(pod)
