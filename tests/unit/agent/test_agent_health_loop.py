"""A bug in a health check is told as the pod's health and ends no checking."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from farmd.agent.checks import Answer
from farmd.agent.health import Damper
from farmd.agent.model import Identity, Record
from farmd.agent.pod import Pod
from farmd.agent.runtimes.choice import Runtimes
from farmd.agent.runtimes.process import Processes
from farmd.agent.state import StateDirectory
from farmd.agent.watcher import HealthWatcher
from farmd.observe.progress import Progress
from store.manifests import HealthCheck, Manifest
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock


class Buggy:
    """A checker whose first check has a bug; later ones pass."""

    checks = 0

    async def check(self, check: HealthCheck, target: Any) -> Answer:
        self.checks += 1
        if self.checks == 1:
            raise ZeroDivisionError("first")
        return Answer("passing", "ok")


async def test_r22_checking_goes_on_after_a_bug_in_a_check(tmp_path: Path) -> None:
    clock, recorder, checker = VirtualClock(), CountingRecorder(), Buggy()
    state = StateDirectory(tmp_path)
    state.instances.mkdir()
    state.create("web")
    watcher = HealthWatcher(
        runtimes=Runtimes(Processes(state, "n1", {}, clock)),
        checker=checker,  # type: ignore[arg-type]
        state=state,
        manifests=None,  # type: ignore[arg-type]
        clock=clock,
        rng=random.Random(1),
        recorder=recorder,
        progress=Progress(clock, recorder),
        wake=lambda: None,
    )
    check = HealthCheck(type="exec", command=["true"], interval=5.0)
    manifest = Manifest(id="web", command=["sleep", "1"], health=check)
    pod = Pod(Record(instance="web", manifest="m"), Damper(clock.mono()), manifest=manifest)
    pod.identity = Identity(instance="web", manifest="m", start="s1", started=0.0)
    watcher.begin(pod)
    while checker.checks < 1:
        await clock.advance(1.0)
    assert (pod.health.state, "ZeroDivisionError" in pod.health.reason) == ("unknown", True)
    await clock.advance(60.0)
    assert pod.health.state == "passing"
    watcher.end(pod)
