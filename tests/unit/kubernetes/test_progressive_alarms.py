"""What people are alerted of while a Knative Service is rolled, and where the metric says that it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from farmd.kubernetes.knative import report
from farmd.kubernetes.knative.facts import Bounds
from farmd.kubernetes.knative.objects import PAUSED, REVERT
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from store.status import ItemStatus
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked
from tests.unit.kubernetes.test_progressive_words import reached

HOUR = report.WAITS_SECONDS


@dataclass
class Told:
    """The status of an item, and its open alerts by key, with how urgent they are."""

    known: ItemStatus | None = None
    open: dict[str, str] = field(default_factory=dict)

    @property
    def incidents(self) -> Told:
        return self

    async def say(self, key: str, text: str, details: dict[str, str], urgency: str) -> None:
        assert not details
        if not text:
            self.open.pop(key, None)
            return
        assert text.startswith("rollout ksvc/shop/web: ")
        self.open[key] = urgency


def moving(pace: Settings) -> Checked:
    """Ten pods, with two fifths of the traffic on the newcomer."""
    world = Checked(1, pace, Bounds(10, 10))
    world.settle()
    world.push(Bounds(10, 10))
    reached(world, {OLD: 60, NEW: 40})
    return world


async def told(world: Checked, status: Told, now: float) -> float | None:
    """Tell what is due at that second; the seconds until another alert is."""
    knative = world.snapshot()
    return await report.tell(status, "uid", knative, decide(knative), now)  # type: ignore[arg-type]


async def test_who_waits_for_a_person_is_told_after_an_hour_until_it_goes_on() -> None:
    world, status = moving(Settings(ratio=20)), Told(ItemStatus(state="blocked", since=100.0))
    world.say(PAUSED, "true")
    for _ in range(5):
        world.cycle()
    assert await told(world, status, 100.0 + HOUR - 1.0) == 1.0
    assert status.open == {}
    assert await told(world, status, 100.0 + HOUR) is None
    assert status.open == {"rollout_waits_uid": "low"}
    world.say(PAUSED, None)
    await told(world, status, 101.0 + HOUR)
    assert status.open == {}


async def test_a_way_back_that_stands_still_past_its_deadline_is_urgent() -> None:
    world, status = moving(Settings(ratio=20)), Told()
    world.revisions[OLD].broken = True
    world.say(REVERT, "1")
    for _ in range(300):
        world.step()
        world.cycle()
    await told(world, status, world.now)
    assert status.open == {}
    world.now += 700.0
    await told(world, status, world.now)
    assert status.open == {"rollout_stuck_uid": "high"}
    world.revisions[OLD].broken = False
    world.settle()
    await told(world, status, world.now)
    assert status.open == {}


async def test_a_newcomer_that_failed_is_told_until_another_revision_serves() -> None:
    world, status = moving(Settings(ratio=20)), Told()
    scale = world.revisions[NEW]
    scale.broken, scale.pods, scale.ready = True, 0, False
    world.now += 700.0
    world.settle()
    await told(world, status, world.now)
    assert status.open == {"rollout_uid": "low"}
    world.push(Bounds(10, 10))
    world.settle()
    await told(world, status, world.now)
    assert status.open == {}


@pytest.mark.parametrize(
    ("word", "broken", "phase"),
    [("", False, "moving"), (PAUSED, False, "paused"), (REVERT, False, "back"), ("", True, "halted")],
)
def test_the_metric_says_where_a_rollout_is_and_nothing_once_it_is_over(
    word: str, broken: bool, phase: str
) -> None:
    world = moving(Settings(ratio=20, on_failure="pause"))
    scale = world.revisions[NEW]
    if broken:
        scale.broken, scale.pods = True, 0
        world.now += 700.0
    if word:
        world.say(word, "true")
    for _ in range(8):
        world.cycle()
    snapshot = world.snapshot()
    assert report.phase(snapshot, decide(snapshot)) == phase
    scale.broken = False
    world.say(PAUSED, None)
    world.say("rollout.farmd.io/resumed", "1")
    world.settle()
    snapshot = world.snapshot()
    assert report.phase(snapshot, decide(snapshot)) == ""


async def test_contended_bounds_are_told_until_it_is_known_that_they_are_not() -> None:
    world, status = moving(Settings(ratio=20)), Told()
    knative = world.snapshot()
    for contended, told in (("keda writes", True), (None, True), ("", False)):
        await report.tell(status, "uid", knative, decide(knative), 0.0, contended)  # type: ignore[arg-type]
        assert ("rollout_contended_uid" in status.open) is told
