"""Traffic, revisions and records that stray from a rollout's path: found by random stories of the pure model.

One revision under two names, revisions that a later push passed over, objects that somebody deleted.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from farmd.kubernetes.knative import scales, view
from farmd.kubernetes.knative.facts import Bounds
from farmd.kubernetes.knative.objects import MIN_SCALE, PAUSED, RETRY, REVERT
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.knative.view import FoundService
from tests.knative_model import LATEST, Scale, World
from tests.knative_worlds import FREE, entry
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked
from tests.unit.kubernetes.test_progressive_words import blocked, reached

SIZE = Bounds(4, 8)
NEWER = "web-00003"
EACH = pytest.mark.parametrize("strategy", ["availability", "resourceutil"])


def resting(strategy: str, size: Bounds = SIZE, load: int = 0) -> Checked:
    """A service at rest."""
    found = Checked(1, Settings(ratio=25, strategy=strategy), size, load)
    found.settle()
    return found


@EACH
@pytest.mark.parametrize("size", [SIZE, FREE])
def test_shares_of_one_revision_by_its_name_and_as_the_latest_are_one_share(
    strategy: str, size: Bounds
) -> None:
    world = resting(strategy, size, load=3)
    world.pin(entry(OLD, 30), entry("", 70, newest=True))
    world.settle()
    world.pin(*LATEST)
    world.settle()
    world.rests(OLD)
    world.push(size)
    world.settle()
    world.rests(NEW)


def test_a_revision_that_a_later_push_passed_over_is_no_newcomer_once_that_one_is_reverted() -> None:
    world = resting("availability")
    world.push(SIZE, broken=True)
    reached(world, {OLD: 100})
    world.push(SIZE, broken=True)
    for _ in range(50):
        world.step()
        world.cycle()
    world.say(REVERT, "1")
    world.settle()
    assert world.revisions[NEW].bounds != Bounds(1, 8), world.seen()


@EACH
def test_a_least_that_somebody_takes_from_the_newcomer_in_mid_stage_is_no_goal_any_more(
    strategy: str,
) -> None:
    world = resting(strategy, Bounds(4), load=2)
    world.push(Bounds(4), broken=True)
    for _ in range(50):
        world.step()
        world.cycle()
    world.revisions[NEW] = Scale(FREE, at=world.revisions[NEW].at)
    world.final[NEW] = FREE
    world.settle()
    world.rests(NEW)


def test_bounds_of_a_held_revision_whose_stage_autoscaler_is_deleted_are_the_template_s() -> None:
    world = resting("availability")
    world.say(PAUSED, "true")
    world.push(SIZE)
    world.until(lambda: world.revisions[NEW].bounds != SIZE)
    world.spas = {OLD: world.spas[OLD]}
    world.say(PAUSED, None)
    world.settle()
    world.rests(NEW)


def test_bounds_of_a_held_revision_whose_record_is_deleted_are_the_template_s() -> None:
    world = resting("availability")
    world.frozen = "somebody doubts it"
    world.push(SIZE)
    world.until(lambda: world.revisions[NEW].bounds != SIZE)
    world.record, world.spas, world.frozen = None, {}, None
    world.pin(*LATEST)
    world.settle()
    world.rests(NEW)


def test_bounds_that_somebody_gave_the_newest_revision_outlast_its_record() -> None:
    world = resting("availability")
    world.push(SIZE)
    reached(world, {OLD: 50, NEW: 50})
    world.revisions[NEW].bounds, world.revisions[NEW].own = Bounds(2, 5), {MIN_SCALE}
    world.final[NEW] = Bounds(4, 5)
    world.say(REVERT, "1")
    world.settle()
    world.record, world.spas = None, {}
    world.settle()
    assert world.revisions[NEW].bounds == Bounds(4, 5)


def test_bounds_of_a_drained_revision_whose_stage_autoscaler_is_deleted_are_given_back() -> None:
    world = resting("availability")
    world.push(SIZE)
    world.until(lambda: world.revisions[OLD].bounds == Bounds(0, 1))
    world.until(lambda: bool(world.record) and scales.rollout(world.snapshot()).ready is True)
    assert world.revisions[OLD].bounds == Bounds(0, 1)
    world.spas = {NEW: world.spas[NEW]}
    world.settle()
    world.rests(NEW)


@EACH
def test_the_share_of_a_revision_that_somebody_deletes_goes_to_none_that_is_drained(strategy: str) -> None:
    world = resting(strategy, FREE, load=8)
    world.push(FREE)
    reached(world, {OLD: 50, NEW: 50})
    world.push(FREE)
    world.until(lambda: bool(world.shares.get(NEWER)))
    del world.revisions[OLD], world.final[OLD]
    world.settle()
    assert world.shares == {NEWER: 100}, world.seen()


def test_no_stage_waits_for_a_stage_autoscaler_that_somebody_deletes_between_two_stages() -> None:
    world = resting("availability")
    world.push(SIZE)
    reached(world, {OLD: 50, NEW: 50})
    world.until(lambda: bool(scales.rollout(world.snapshot()).stage_ready))
    world.spas = {OLD: world.spas[OLD]}
    world.settle()
    world.rests(NEW)


def test_a_way_back_to_a_revision_that_somebody_deletes_says_that_it_is_gone() -> None:
    world = resting("availability")
    world.push(SIZE)
    reached(world, {OLD: 50, NEW: 50})
    world.say(REVERT, "1")
    reached(world, {OLD: 75, NEW: 25})
    del world.revisions[OLD]
    world.now += 700.0
    assert "the way back makes no progress: 600 s without progress: web-00001 is gone" in blocked(world)
    world.say(RETRY, NEW)
    world.settle()
    world.rests(NEW)


def test_a_former_revision_that_somebody_deletes_before_its_first_stage_holds_no_stage_up() -> None:
    world = resting("availability")
    world.spas = {}
    world.push(SIZE)
    del world.revisions[OLD], world.final[OLD]
    world.settle()
    assert world.shares == {NEW: 100}


def test_a_pause_that_outlasts_a_release_keeps_no_bounds_of_a_stage_before_it() -> None:
    world = resting("availability")
    world.say(PAUSED, "true")
    world.push(SIZE)
    world.pin(*LATEST)
    world.until(lambda: world.shares == {NEW: 100})
    world.enabled = False
    world.settle()
    assert world.revisions[NEW].bounds == SIZE
    world.enabled = True
    assert blocked(world).startswith("paused")
    assert world.revisions[NEW].bounds == SIZE


def test_a_release_gives_back_a_bound_that_somebody_changed_right_before_it() -> None:
    world = resting("availability")
    world.push(SIZE)
    world.until(lambda: world.revisions[OLD].bounds == Bounds(0, 1))
    world.revisions[OLD].bounds, world.revisions[OLD].own = Bounds(0, 5), {MIN_SCALE}
    world.final[OLD] = Bounds(4, 5)
    world.enabled = False
    world.settle()
    assert world.revisions[OLD].bounds == Bounds(4, 5)


def test_a_service_beside_a_record_that_is_nobody_s_is_shown_as_blocked() -> None:
    world = World(random.Random(1), Settings())
    row = view.row(FoundService(dataclasses.replace(world.snapshot(), ownerless=True)))
    assert row.phase == "blocked"
    assert row.reason == "RolloutOrchestrator web: found no owner, expected the service web: delete it"
