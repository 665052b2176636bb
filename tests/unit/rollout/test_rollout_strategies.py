"""How the strategies move pods: what comes first, what is waited for, and what never breaks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.rollout.stages import ceiling, goals, minimum
from store.policies import Stage
from store.rollouts import RolloutState
from tests.effort import tries
from tests.rollout_worlds import NEW, NOW, OLD, World, on, pod, rollout

Counts = tuple[int, int]
STRATEGIES = ("rolling", "availability", "resourceutil", "blue-green")


def world(total: int, strategy: str, free: int = 30, began: int | None = None, **policy: Any) -> World:
    told = {"strategy": strategy, "minimum": None, "stages": [], **policy}
    begun = rollout(total, 0, began=total if began is None else began, policy=told, service="77aa")
    return World(begun, on(begun.started_from), free=[f"free{number:02}" for number in range(free)])


def counts(world: World) -> Counts:
    return world.counts.get(OLD, len(world.old)), world.counts.get(NEW, len(world.new))


def run(world: World, steps: int = 400, healthy: bool = True) -> list[Counts | str]:
    """Until it ends or does nothing more: both counts as they change, and each switch of the service."""
    seen: list[Counts | str] = [counts(world)]
    for _ in range(steps):
        plan = world.step()
        if plan.turn is not None and plan.turn.action == "switch":
            seen.append("switch")
        if counts(world) != [each for each in seen if each != "switch"][-1]:
            seen.append(counts(world))
        if world.outcome:
            return seen
        unknown = any(state.reality is None for pods in (world.old, world.new) for state in pods.values())
        if plan.turn is None and not plan.moves.moves:
            if not unknown and not world.ending:
                return seen
            world.settle(healthy)
    return seen


COURSES = [
    ("availability", {"ratio": 25}, [(4, 0), (4, 1), (3, 1), (3, 2), (2, 2), (2, 3), (1, 3), (1, 4), (0, 4)]),
    ("availability", {"stages": [2, "100%"]}, [(4, 0), (4, 2), (2, 2), (2, 4), (0, 4)]),
    ("resourceutil", {"ratio": 50}, [(4, 0), (2, 0), (2, 2), (0, 2), (0, 4)]),
    (
        "resourceutil",
        {"ratio": 50, "minimum": 3},
        [(4, 0), (3, 0), (3, 1), (2, 1), (2, 2), (1, 2), (1, 3), (0, 3), (0, 4)],
    ),
    ("blue-green", {"keep_old": 0.0}, [(4, 0), (4, 4), "switch", (0, 4)]),
]


@pytest.mark.parametrize(("strategy", "policy", "expected"), COURSES)
def test_the_order_of_each_strategy(strategy: str, policy: dict[str, Any], expected: list[Any]) -> None:
    made = world(4, strategy, **policy)
    assert run(made) == expected
    assert made.outcome == "done"


def test_availability_takes_no_old_pod_before_the_new_ones_are_available() -> None:
    made = world(4, "availability", ratio=50)
    run(made, healthy=False)
    assert counts(made) == (4, 2)
    assert "nothing may leave until free00/web is available" in made.decide().waiting


def test_resourceutil_waits_until_what_was_removed_has_ended() -> None:
    made = world(4, "resourceutil", ratio=50)
    for _ in range(3):
        plan = made.step()
    assert counts(made) == (2, 0)
    assert plan.waiting == "waiting for the end of 2 removed pods"
    made.settle()
    assert [move.way for move in made.step().moves.moves] == ["grow", "grow"]


def test_without_room_availability_says_so_and_lets_nothing_leave() -> None:
    made = world(4, "availability", free=0, ratio=50)
    made.step()
    plan = made.step()
    assert (plan.moves.moves, plan.blocked.code) == ((), "no_room")  # type: ignore[union-attr]
    assert counts(made) == (4, 0)


def test_blue_green_rests_asks_switches_and_keeps_the_old_pods_for_a_while() -> None:
    stages = [Stage(to="100%", bake=30.0, approve=True)]
    made = world(4, "blue-green", stages=stages, keep_old=90.0)
    run(made)
    assert (counts(made), made.state.phase) == ((4, 4), "baking")  # type: ignore[union-attr]
    made.now += 30.0
    assert made.decide().blocked.code == "unapproved"  # type: ignore[union-attr]
    made.rollout = msgspec.structs.replace(made.rollout, approved=2)
    plan = made.step()
    assert (plan.turn.action, plan.turn.takes) == ("switch", False)  # type: ignore[union-attr]
    assert made.state.switched  # type: ignore[union-attr]
    assert made.decide().after == 90.0
    made.now += 90.0
    assert run(made) == [(4, 4), (0, 4)]
    assert made.outcome == "done"


def test_blue_green_does_not_switch_to_pods_that_are_not_available() -> None:
    made = world(3, "blue-green", stages=[Stage(to="100%", bake=30.0)])
    run(made)
    made.now += 30.0
    made.new = {place: pod(NEW, healthy=False) for place in made.new}
    assert made.decide().turn is None


@pytest.mark.parametrize("gone", [0, 2])
def test_blue_green_switches_back_before_a_new_pod_leaves(gone: int) -> None:
    made = world(4, "blue-green", keep_old=60.0)
    run(made)
    assert made.state.switched  # type: ignore[union-attr]
    for place in sorted(made.old)[:gone]:
        del made.old[place]
    made.counts[OLD] = 4 - gone
    made.rollout = msgspec.structs.replace(made.rollout, wish="revert")
    seen = run(made)
    assert seen == [*([(2, 4)] if gone else []), (4, 4), "switch", (4, 0)]
    assert made.outcome == "reverted"


@pytest.mark.parametrize("back", [False, True], ids=["switched", "switched back"])
def test_blue_green_counts_on_no_pod_that_the_service_does_not_name(back: bool) -> None:
    """A drain asks a pod of the version that serves to leave: pods of the other one serve nobody."""
    made = world(4, "blue-green", keep_old=60.0)
    run(made)
    if back:
        made.rollout = msgspec.structs.replace(made.rollout, wish="revert")
        while made.state.switched:  # type: ignore[union-attr]
            made.step()
    named = made.old if back else made.new
    drained = min(named)
    named[drained] = pod(OLD if back else NEW, draining="gentle")
    for _ in range(10):
        assert drained not in [move.source for move in made.step().moves.moves]


def test_on_the_way_back_new_pods_that_serve_nobody_go_at_once() -> None:
    made = world(4, "resourceutil", ratio=50)
    run(made, healthy=False)
    assert counts(made) == (2, 2)
    made.rollout = msgspec.structs.replace(made.rollout, wish="revert")
    assert run(made) == [(2, 2), (2, 0), (4, 0)]


def test_availability_goes_back_within_its_ceiling() -> None:
    made = world(4, "availability", ratio=25)
    for _ in range(60):
        if counts(made) == (1, 3):
            break
        if not made.step().moves.moves:
            made.settle()
    made.rollout = msgspec.structs.replace(made.rollout, wish="revert")
    seen = run(made)
    assert seen[-1] == (4, 0)
    assert max(old + new for old, new in seen if isinstance(old, int)) == 5


def test_a_new_pod_that_is_lost_is_placed_again_before_old_ones_go() -> None:
    made = world(4, "availability", stages=[2, "100%"])
    for _ in range(2):
        made.step()
    made.settle()
    lost = min(made.new)
    made.new[lost] = pod(NEW, lost=NOW - 100, absent=True)
    (move,) = made.step().moves.moves
    assert (move.way, move.source) == ("refill", lost)


# -- whole runs ---------------------------------------------------------------------------------
AILMENTS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"healthy": False},
    {"absent": True},
    {"lost": NOW - 100, "absent": True},
    {"draining": "gentle", "retained": False},
]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    strategy = draw(st.sampled_from(STRATEGIES))
    total, began = draw(st.integers(1, 12)), draw(st.integers(0, 12))
    most = total - (strategy in ("rolling", "resourceutil"))
    policy: dict[str, Any] = {"minimum": draw(st.none() | st.integers(0, most)), "progress_deadline": 60.0}
    if draw(st.booleans()):
        policy["ratio"] = draw(st.integers(1, 100))
    else:
        parts = {draw(st.integers(1, total)) for _ in range(draw(st.integers(0, 2)))} - {total}
        policy["stages"] = [*sorted(parts), "100%"]
    made = world(total, strategy, began=began, keep_old=0.0, **policy)
    for place in made.old:
        made.old[place] = pod(**draw(st.sampled_from(AILMENTS)))
    return made


def serving(world: World) -> set[Any]:
    return {
        (place, state.pod.record.manifest)
        for pods in (world.old, world.new)
        for place, state in pods.items()
        if not state.down
    }


@settings(max_examples=tries(600), deadline=None)
@given(worlds(), st.data())
def test_whole_runs_keep_floor_and_ceiling_and_end_once(world: World, data: st.DataObject) -> None:
    """P1 to P4, P7 to P9, for every strategy, with flaps and a word to revert at any moment."""
    begun = world.rollout
    total, began, policy = begun.replicas, begun.started_from, begun.policy
    floor, most = minimum(begun), ceiling(begun, goals(begun, minimum(begun)))
    stage, back, said, switched = 0, False, False, False
    for step in range(600):
        settled, stood = world.available(), serving(world)
        plan = world.step()
        state = world.state
        if state is not None and state.back:
            floor = min(floor, began if policy.beside else began - 1)
        assert len(stood - serving(world)) <= max(0, settled - floor), plan  # P1
        od, nd = counts(world)
        assert od + nd <= most  # P2
        assert 0 <= nd <= total
        assert 0 <= od <= began  # P3
        assert (od, nd) == (len(world.old), len(world.new))
        if plan.turn is not None and plan.turn.action == "switch":
            assert policy.strategy == "blue-green"
            forward = state is not None and not state.back
            assert switched != forward
            assert not forward or sum(each.available for each in world.new.values()) >= total
            switched = forward
        if policy.strategy == "blue-green" and not switched and not back:
            assert od == began
        if world.outcome:
            break
        assert state is not None
        assert state.back >= back  # P9
        assert state.stage >= stage
        stage, back = state.stage, state.back
        if plan.turn is None and not plan.moves.moves:
            assert plan.waiting or plan.blocked, plan  # P8
            world.now += plan.after if state.phase == "baking" and plan.after else 0.0
            world.settle(data.draw(st.booleans()) if step < 40 else True)
            world.old = {p: pod(OLD) for p in world.old}
            if world.old and step < 40 and data.draw(st.booleans()):
                world.old[max(world.old)] = pod(**data.draw(st.sampled_from(AILMENTS)))
            if step >= 40:
                world.new = {p: pod(NEW) for p in world.new}
            if not said and data.draw(st.integers(0, 9)) == 0:
                said = True
                world.rollout = msgspec.structs.replace(world.rollout, wish="revert")
    assert world.outcome in ("done", "reverted")
    assert (world.outcome == "reverted") == back
    assert counts(world) == ((began, 0) if back else (0, total))
    assert switched == (policy.strategy == "blue-green" and not back)


def frozen(world: World, **fields: Any) -> bool:
    return world.decide(**fields).moves.moves == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_frozen_nothing_moves(strategy: str) -> None:
    """P6."""
    made = world(4, strategy)
    made.state = RolloutState(phase="moving", since=NOW)
    assert not frozen(made)
    assert frozen(made, frozen="no leader")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equal_moments_give_equal_plans(strategy: str) -> None:
    """P10."""
    plans = []
    for turned in (False, True):
        made = world(6, strategy)
        made.old = dict(sorted(made.old.items(), reverse=turned))
        made.state = RolloutState(phase="moving", since=NOW)
        plans.append(made.decide())
    assert plans[0] == plans[1]
