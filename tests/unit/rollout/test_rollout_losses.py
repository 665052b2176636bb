"""Old pods on lost and drained nodes while a stage moves: the rollout gives them other places at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from farmd.rollout.facts import Move
from scheduler.model import Assignment
from store.pods import Place
from store.rollouts import RolloutState
from tests.rollout_worlds import NEW, NOW, OLD, POD, World, on, pod, rollout

LOST: dict[str, Any] = {"lost": NOW - 500, "absent": True}
FORCED: dict[str, Any] = {"draining": "forced", "retained": False}
GENTLE: dict[str, Any] = {"draining": "gentle", "retained": False}
# The counts at the end of a stage, whose new pods are not available yet.
REACHED = [
    ("rolling", 2, 2),
    ("resourceutil", 2, 2),
    ("availability", 2, 2),
    ("blue-green", 4, 4),
]


def moving(strategy: str, old: int, new: int, **policy: Any) -> World:
    """A rollout of four pods with these counts; nothing is known of the new pods yet."""
    stages = ["100%"] if strategy == "blue-green" else [2, "100%"]
    told = {"strategy": strategy, "minimum": None, "stages": stages, **policy}
    comers = {(f"new{number}", POD): pod(NEW, healthy=None, at=NOW) for number in range(new)}
    begun = rollout(4, 0, policy=told, service="77aa")
    return World(begun, on(old), comers, state=RolloutState(phase="moving", since=NOW), free=["free0"])


def befalls(world: World, **fields: Any) -> Place:
    """The last old pod, to which this happens."""
    place = max(world.old)
    world.old[place] = pod(OLD, **fields)
    return place


@pytest.mark.parametrize("fields", [LOST, FORCED], ids=["lost", "drained by force"])
@pytest.mark.parametrize(("strategy", "old", "new"), REACHED)
def test_an_old_pod_that_stays_in_the_stage_gets_another_place_at_once(
    strategy: str, old: int, new: int, fields: dict[str, Any]
) -> None:
    made = moving(strategy, old, new)
    place = befalls(made, **fields)
    assert made.step().moves.moves == (Move("restore", place, Assignment("free0", POD)),)
    assert (len(made.old), len(made.new), made.counts) == (old, new, {OLD: old, NEW: new})


@pytest.mark.parametrize(("strategy", "old", "new"), REACHED)
def test_an_old_pod_that_is_missing_in_the_stage_is_placed_at_once(strategy: str, old: int, new: int) -> None:
    made = moving(strategy, old, new)
    del made.old[max(made.old)]
    made.counts = {OLD: old, NEW: new}
    assert made.step().moves.moves == (Move("restore", None, Assignment("free0", POD)),)
    assert (len(made.old), made.counts) == (old, {OLD: old, NEW: new})


@pytest.mark.parametrize("fields", [LOST, FORCED], ids=["lost", "drained by force"])
@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
def test_an_old_pod_that_the_stage_takes_anyway_leaves_at_once(strategy: str, fields: dict[str, Any]) -> None:
    made = moving(strategy, 4, 2, minimum=3)
    place = befalls(made, **fields)
    assert made.step().moves.moves == (Move("drop", place),)


@pytest.mark.parametrize(
    ("strategy", "count", "available", "expected"),
    [("availability", 2, 0, ()), ("availability", 2, 1, ("restore",)), ("blue-green", 4, 1, ())],
)
def test_a_gentle_drain_waits_until_the_others_that_serve_keep_the_floor(
    strategy: str, count: int, available: int, expected: tuple[str, ...]
) -> None:
    """New pods of a blue-green rollout serve nobody before the switch."""
    made = moving(strategy, count, count, minimum=count)
    befalls(made, **GENTLE)
    made.new |= {place: pod(NEW) for place in sorted(made.new)[:available]}
    assert tuple(move.way for move in made.step().moves.moves) == expected


@pytest.mark.parametrize(("strategy", "old", "new"), REACHED)
def test_without_room_a_lost_old_pod_stays_and_people_are_told(strategy: str, old: int, new: int) -> None:
    made = moving(strategy, old, new)
    befalls(made, **LOST)
    made.free = []
    plan = made.decide()
    assert (plan.moves.moves, plan.blocked and plan.blocked.code) == ((), "no_room")


@pytest.mark.parametrize(("strategy", "old", "new"), REACHED)
def test_r27_a_pod_that_is_waited_for_or_may_still_run_gets_no_other_place(
    strategy: str, old: int, new: int
) -> None:
    made = moving(strategy, old, new)
    befalls(made, **LOST)
    side = made.snapshot().old
    assert side is not None
    waits = dataclasses.replace(side, rc=msgspec.structs.replace(side.rc, on_lost="wait"))
    runs = dataclasses.replace(side, stop_after=1000.0)
    assert [made.decide(old=each).moves.moves for each in (waits, runs)] == [(), ()]
