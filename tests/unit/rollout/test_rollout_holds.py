"""What holds a rollout, and what wakes it again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.pods.state import STOP_MARGIN_SECONDS
from farmd.rollout.facts import Side
from store.entry import Stored
from store.reality import Intent
from store.rollouts import RolloutState
from tests.rollout_worlds import NEW, NOW, OLD, OLDER, POD, World, controller, on, pod, rollout

STAGES = [{"to": 1, "bake": 60.0}, "100%"]


def resting(healthy: bool, **policy: Any) -> World:
    """One new pod of ten; the stage was reached a minute ago and has rested enough."""
    typed = msgspec.convert({"stages": STAGES, "progress_deadline": 300.0, **policy}, type=dict)
    plain = msgspec.to_builtins(rollout(10, 5)) | {"policy": {"minimum": 5, **typed}}
    world = World(msgspec.convert(plain, type(rollout(10, 5))), on(10))
    place = ("n000", POD)
    del world.old[place]
    world.new[place] = pod(NEW, healthy=healthy)
    world.state = RolloutState(phase="baking", stage=0, since=NOW - 61, reached=NOW - 61)
    world.risen = NOW - 10
    return world


def test_a_stage_that_rested_enough_goes_on_only_while_its_pods_are_available() -> None:
    assert resting(True).decide().turn is not None
    plan = resting(False).decide()
    assert (plan.turn, plan.after) == (None, 290.0)
    assert "n000/web is not available yet" in plan.waiting


def test_a_version_that_falls_ill_while_it_waits_for_a_word_has_a_deadline() -> None:
    stages = [{"to": 1}, {"to": "100%", "approve": True}]
    ill = resting(False, stages=stages)
    assert ill.decide().after == 290.0
    ill.now += 291.0
    assert ill.decide().turn.action == "back"  # type: ignore[union-attr]


def test_r27_a_pod_on_a_lost_node_is_looked_at_again_once_it_has_stopped_there() -> None:
    world = World(rollout(3, 2), on(3), state=RolloutState(phase="moving", since=NOW))
    world.old["n000", POD] = pod(OLD, lost=NOW - 5, absent=True)
    world.old["n001", POD] = pod(OLD, absent=True)
    side = Side(controller(OLD, 3), world.old, stop_after=30.0)
    plan = world.decide(old=side)
    assert not plan.moves.moves
    assert plan.after == 25.0 + STOP_MARGIN_SECONDS


def test_w10_the_place_of_another_owners_intent_is_not_taken_over() -> None:
    world = World(rollout(2, 0), on(2), state=RolloutState(phase="moving", since=NOW))
    intent = Stored("intent", Intent(OLDER, "somebody"), 5, b"")
    world.old["n000", POD] = msgspec.structs.replace(world.old["n000", POD], intent=intent)
    world.old["n001", POD] = msgspec.structs.replace(world.old["n001", POD], intent=None, unreadable=True)
    plan = world.decide()
    assert not plan.moves.moves
    assert "n000/web: its intent belongs to somebody" in plan.blocked.text  # type: ignore[union-attr]


def test_why_it_goes_back_stays_known_through_a_pause() -> None:
    world = World(rollout(3, 2), on(3))
    world.state = RolloutState(phase="moving", back=True, since=NOW, cause="version 2 fails")
    world.rollout = msgspec.structs.replace(world.rollout, paused=True)
    world.step()
    assert world.state.phase == "halted"
    world.rollout = msgspec.structs.replace(world.rollout, paused=False)
    world.step()
    assert (world.state.phase, world.state.cause) == ("moving", "version 2 fails")
    world.step()
    assert world.outcome == "reverted"


def test_a_missing_pod_without_a_place_holds_no_other_pod() -> None:
    """One pod of ten has no node: the others take the new version where they stand."""
    world = World(rollout(10, 8), on(9), counts={OLD: 10, NEW: 0})
    world.state = RolloutState(phase="moving", since=NOW)
    plan = world.step()
    assert [move.in_place for move in plan.moves.moves] == [True]
    assert plan.blocked is not None


@pytest.mark.parametrize("phase", ["moving", "halted"])
def test_r19_mass_ill_health_holds_a_version_that_fails_forward_only(phase: str) -> None:
    """Its deadline reverts it as ever; another freeze holds that, too."""
    world = World(rollout(3, 0, policy={"progress_deadline": 60}), {}, on(3, NEW, healthy=False))
    world.state = RolloutState(phase=phase, since=NOW - 50, cause="frozen")  # type: ignore[arg-type]
    world.risen = NOW - 50
    frozen = {"frozen": "health: most fail", "frozen_for": 20.0, "curable": True}
    plan = world.decide(**frozen)
    assert (plan.turn, plan.after) == (None, 10.0)
    world.now = NOW + 20
    other = world.decide(**frozen | {"curable": False})
    assert other.turn is None
    plan = world.decide(**frozen)
    assert plan.turn is not None
    assert (plan.turn.action, "3 of 3 pods" in plan.turn.reason) == ("back", True)


def test_a_pod_that_a_forced_drain_takes_is_no_reason_to_take_another_one() -> None:
    """Three are available and two must stay: the drain takes one of them, so nothing else may leave."""
    world = World(rollout(3, 2), {("n000", POD): pod(OLD)}, {("n001", POD): pod(NEW)}, free=["n009"])
    world.new["n002", POD] = pod(NEW, draining="forced", retained=False)
    world.state = RolloutState(phase="moving", since=NOW)
    plan = world.decide()
    assert [(move.way, move.source) for move in plan.moves.moves] == [("refill", ("n002", POD))]


@pytest.mark.parametrize(("healthy", "action"), [(False, "back"), (None, "halt")])
def test_r18_a_freeze_that_comes_again_and_again_does_not_put_the_deadline_off(
    healthy: bool | None, action: str
) -> None:
    """Each time it moves for 100 s without progress, and is frozen for a minute; the deadline is 600 s."""
    world = World(rollout(3, 2), on(2), {("n002", POD): pod(NEW, healthy=healthy, at=NOW)})
    world.state, world.counts = RolloutState(phase="moving", since=NOW), {OLD: 2, NEW: 1}
    for _ in range(5):
        world.now += 160.0
        assert world.step(frozen="no leader", frozen_for=60.0).turn.action == "halt"  # type: ignore[union-attr]
        assert world.step().turn.action == "take"  # type: ignore[union-attr]
        world.risen = 0.0
        assert world.decide().turn is None
    world.now += 101.0
    turn = world.decide().turn
    assert turn is not None
    assert turn.action == action


def test_after_a_pause_or_a_fault_there_is_a_whole_deadline_again() -> None:
    world = World(rollout(3, 2), on(2), {("n002", POD): pod(NEW, healthy=None, at=NOW)}, risen=0.0)
    world.state, world.counts = RolloutState(phase="moving", since=NOW), {OLD: 2, NEW: 1}
    world.now += 590.0
    world.rollout = msgspec.structs.replace(world.rollout, paused=True)
    assert world.step().turn.action == "halt"  # type: ignore[union-attr]
    world.rollout = msgspec.structs.replace(world.rollout, paused=False, resumed=1)
    assert world.step().turn.action == "take"  # type: ignore[union-attr]
    assert world.decide().after == 600.0
    world.now += 601.0
    assert world.step().turn.state.fault  # type: ignore[union-attr]
    world.rollout = msgspec.structs.replace(world.rollout, resumed=2)
    assert world.step().turn.action == "take"  # type: ignore[union-attr]
    assert world.decide().after == 600.0
