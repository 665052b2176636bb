"""What a worker reports of a rollout under way: statuses of StagePodAutoscalers at their pace, and how long
stages take.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from farmd.kubernetes.knative import scales
from farmd.kubernetes.knative.facts import Bounds, Snapshot, Turn
from farmd.kubernetes.knative.kind import MIRROR_SECONDS, ProgressiveWorker
from farmd.kubernetes.knative.objects import AutoscalerStatus, StageAutoscaler, StageAutoscalerStatus
from farmd.kubernetes.knative.scales import Growth
from farmd.kubernetes.knative.settings import Settings
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked
from tests.unit.kubernetes.test_progressive_words import reached


class Reporting(ProgressiveWorker):
    """A worker whose statuses are kept, in place of being written; ``knative`` shows them."""

    def __init__(self, knative: Snapshot) -> None:
        self._fenced, self._mirrored_at = True, -math.inf
        self._growth = Growth(0.0)
        self.knative, self.written = knative, list[str]()
        self.took: list[tuple[str, float]] = []
        self.kind: Any = SimpleNamespace(context=SimpleNamespace(recorder=self))

    def observe(self, name: str, seconds: float, *, result: str) -> None:
        assert name == "farmd_rollout_step_duration_seconds"
        self.took.append((result, seconds))

    async def mirror(self, spa: StageAutoscaler, status: StageAutoscalerStatus) -> None:
        name = spa.metadata.name
        self.written.append(name)
        self.knative = replace(
            self.knative, spas={**self.knative.spas, name: structs.replace(spa, status=status)}
        )

    async def after(self, seconds: float, pods: int | None) -> float | None:
        """Report once more, so much later, when the newcomer's autoscaler says that it has so many pods."""
        scale = structs.replace(
            self.knative.autoscalers[NEW], status=AutoscalerStatus(desired_scale=pods, actual_scale=pods)
        )
        known = {**self.knative.autoscalers, NEW: scale}
        self.knative = replace(self.knative, now=self.knative.now + seconds, autoscalers=known)
        self.written.clear()
        return await self._mirror(self.knative, self)  # type: ignore[arg-type]


def worker() -> Reporting:
    """In the midst of a rollout of ten pods."""
    world = Checked(1, Settings(ratio=20), Bounds(10, 10))
    world.settle()
    world.push(Bounds(10, 10))
    reached(world, {OLD: 60, NEW: 40})
    return Reporting(world.snapshot())


async def test_numbers_are_written_once_in_ten_seconds_and_a_verdict_at_once() -> None:
    found = worker()
    assert await found.after(0.0, 4) is None
    assert NEW in found.written
    assert await found.after(4.0, 5) == MIRROR_SECONDS - 4.0
    assert found.written == []
    assert await found.after(6.0, 5) is None
    assert found.written == [NEW]
    assert await found.after(1.0, None) is None
    assert found.written == [NEW]  # how many pods there are is not known any more: a verdict
    assert await found.after(1.0, None) is None
    assert found.written == []


def test_a_stage_that_ends_tells_how_long_it_took_and_how_it_ended() -> None:
    found = worker()
    later = replace(found.knative, now=scales.since(found.knative) + 42.0)
    for action in ("stage-done", "halt", "word"):
        found._time(later, Turn(action=action))  # type: ignore[arg-type]
    assert found.took == [("done", 42.0), ("failed", 42.0)]


async def test_pods_of_a_newcomer_that_come_and_go_are_no_progress_and_its_deadline_passes() -> None:
    found = worker()
    began = found.knative.now
    for seconds, pods in ((0.0, 4), (10.0, 5), (300.0, 3), (300.0, 5), (300.0, 4), (10.0, 5)):
        await found.after(seconds, pods)
        found.knative = found._growth.seen(found.knative)
    assert found.knative.risen == began + 10.0
    await found.after(10.0, 6)
    assert found._growth.seen(found.knative).risen == found.knative.now
