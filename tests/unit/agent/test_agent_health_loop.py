"""What the checks of a pod lead to: its health, whatever bug they have, and a restart in place."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farmd.agent import plan
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
from store.manifests import HealthCheck, Manifest, Restart
from store.reality import Exit, Health
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


class Told:
    """A checker whose checks pass while a test says so."""

    passes = True

    async def check(self, check: HealthCheck, target: Any) -> CheckResult:
        return CheckResult("passing", "ok") if self.passes else CheckResult("failing", "HTTP 503")


def action(pod: Pod, clock: VirtualClock) -> plan.Action:
    pod.target = pod.manifest
    situation = pod.situation(isolated=0.0, halting=False)
    return plan.decide(dataclasses.replace(situation, prepared=True), clock.mono())


async def test_a_pod_is_restarted_once_it_failed_its_check_for_so_long_without_a_pass(tmp_path: Path) -> None:
    clock, checker = VirtualClock(), Told()
    watcher = watching(tmp_path, clock, checker, CountingRecorder())
    pod = checked(HealthCheck(type="http", port="http", interval=2.0, failures=3, restart_after=30.0), clock)
    pod.change(running="m", start="s1", owner="rc1")
    watcher.begin(pod)
    await clock.advance(100.0)
    assert action(pod, clock) == plan.Wait()
    for passes, seconds in ((False, 30.0), (True, 5.0), (False, 30.0)):
        checker.passes = passes
        await clock.advance(seconds)
        assert isinstance(action(pod, clock), plan.Wait)
    await clock.advance(10.0)
    due = action(pod, clock)
    assert due == plan.Stop("unhealthy for 30 s (health.restart_after): HTTP 503", ailing=True)
    pod.ails(due.why)
    pod.ended(Exit(clock.now(), 0), why="exited", mono=clock.mono())
    assert (pod.record.failures, pod.record.exits[-1].unhealthy, pod.record.done) == (1, True, False)
    assert pod.not_before == clock.mono() + 1.0
    assert clock.now() - pod.record.failing_since > 30.0
    watcher.end(pod)


@pytest.mark.parametrize(
    ("worked", "failures", "pause"), [(5.0, 4, 8.0), (60.0, 1, 1.0)], ids=["still ill", "was well"]
)
def test_restarts_of_an_unhealthy_pod_have_the_backoff_of_crashes(
    worked: float, failures: int, pause: float
) -> None:
    manifest = Manifest(id="web", command=["x"], restart=Restart(policy="on-failure"))
    record = Record(instance="web", manifest="m", running="m", start="s", started=1000.0, failures=3)
    pod = Pod(record, Damper(0.0), manifest=manifest)
    pod.health = Health("critical", 1000.0 + worked)
    pod.ails("unhealthy")
    # Another agent finds it ended: that it was asked to is known from the record alone.
    again = Pod(
        msgspec.json.decode(msgspec.json.encode(pod.record), type=Record), Damper(0.0), target=manifest
    )
    again.ended(Exit(1200.0, 0), why="exited", mono=50.0)
    assert (again.record.failures, again.not_before, again.record.done) == (failures, 50.0 + pause, False)
    assert again.record.exits == [Exit(1200.0, 0, unhealthy=True)]
    assert again.record.reason == "unhealthy"


def test_an_unhealthy_pod_that_is_to_run_another_manifest_meanwhile_did_not_fail() -> None:
    record = Record(instance="web", manifest="m", running="m", start="s", started=1000.0, failures=3)
    pod = Pod(record, Damper(0.0), manifest=Manifest(id="web", command=["x"]))
    pod.ails("unhealthy")
    pod.change(manifest="n")
    pod.stopping = 40.0
    pod.ended(Exit(1200.0, -15), why="ended by SIGTERM", mono=50.0)
    assert (pod.record.failures, pod.not_before, pod.record.exits) == (0, 50.0, [Exit(1200.0, -15)])
