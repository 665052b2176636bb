"""Another number of replicas in the middle of a rollout: both sides follow, and the floor is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.rollout.stages import minimum
from store.policies import Stage
from tests.effort import tries
from tests.rollout_worlds import NEW, NOW, OLD, POD, World, on, pod, rollout


def scaled(world: World, count: int, floor: int | None) -> None:
    policy = msgspec.structs.replace(world.rollout.policy, minimum=floor)
    world.rollout = msgspec.structs.replace(world.rollout, replicas=count, started_from=count, policy=policy)


def counts(world: World) -> tuple[int, int]:
    return world.counts.get(OLD, len(world.old)), world.counts.get(NEW, len(world.new))


def lent(world: World) -> None:
    """What the old controller's own worker does while it is lent: it places the pods that it lacks."""
    for _ in range(counts(world)[0] - len(world.old)):
        world.old[world.free.pop(), POD] = pod(OLD, at=NOW)


def cycle(world: World) -> bool:
    """One cycle, and what follows by itself; whether anything goes on. The floor is kept (P1)."""
    serving = world.available()
    before = sum(state.available for pods in (world.old, world.new) for state in pods.values())
    plan = world.step()
    assert before - world.available() <= max(0, serving - minimum(world.rollout))
    if plan.turn is not None or plan.moves.moves:
        return not world.outcome
    if world.state is not None and world.state.phase == "baking" and counts(world)[0] > len(world.old):
        lent(world)
        return True
    if world.ending or any(state.reality is None for state in world.new.values()):
        world.settle()
        return True
    return False


def run(world: World) -> None:
    for _ in range(400):
        if not cycle(world):
            return
    raise AssertionError("it does not come to rest")


def held(total: int = 10, minimum: int = 9) -> World:
    """A canary of two pods that waits for approval."""
    stages = [Stage(to="20%"), Stage(to="100%", approve=True)]
    world = World(rollout(total, minimum, policy={"stages": stages}), on(total))
    world.free = [f"free{number}" for number in range(60)]
    run(world)
    assert world.decide().blocked.code == "unapproved"  # type: ignore[union-attr]
    return world


@pytest.mark.parametrize(
    ("count", "minimum", "both"),
    [(20, 19, (16, 4)), (12, 9, (9, 3)), (5, 4, (3, 2)), (2, 1, (0, 2)), (1, 0, (0, 1))],
)
def test_a_held_canary_follows_with_both_sides_and_is_held_again(
    count: int, minimum: int, both: tuple[int, int]
) -> None:
    world = held()
    scaled(world, count, minimum)
    run(world)
    assert (counts(world), len(world.old), len(world.new)) == (both, *both)
    world.rollout = msgspec.structs.replace(world.rollout, approved=2)
    run(world)
    assert (world.outcome, counts(world)) == ("done", (0, count))


def test_fewer_pods_leave_only_above_the_floor() -> None:
    world = held()
    for place in list(world.old)[:4]:
        world.old[place] = pod(healthy=False)
    scaled(world, 5, 4)
    cycle(world)
    cycle(world)
    assert world.available() == 6 - 1  # the four that fail went first, then one; two are above the floor
    run(world)
    assert world.available() >= 4


def test_the_way_back_leads_to_the_scaled_number() -> None:
    world = held()
    scaled(world, 14, 13)
    world.rollout = msgspec.structs.replace(world.rollout, wish="revert")
    for _ in range(60):
        plan = world.step()
        if world.outcome:
            break
        if plan.turn is None and not plan.moves.moves:
            for place, state in world.old.items():
                if state.reality is None:
                    world.old[place] = pod(OLD, at=NOW)
    assert (world.outcome, counts(world)) == ("reverted", (14, 0))


@settings(max_examples=tries(200), deadline=None)
@given(st.data())
def test_whenever_it_is_scaled_it_ends_with_so_many_and_keeps_the_floor(data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from(["rolling", "availability", "resourceutil", "blue-green"]))

    def floor(total: int) -> int | None:
        return data.draw(st.integers(0, total - 1), "floor") if strategy == "rolling" else None

    total = data.draw(st.integers(1, 12), "replicas")
    parts: list[Any] = sorted(data.draw(st.sets(st.integers(1, total), max_size=3), "stages") | {total})
    rest = data.draw(st.sampled_from([0.0, 0.001]), "bake")
    stages = [Stage(to=part, bake=rest) for part in parts]
    policy = {"strategy": strategy, "stages": stages, "keep_old": 0.0, "minimum": floor(total)}
    world = World(rollout(total, 0, policy=policy), on(total))
    world.free = [f"free{number}" for number in range(60)]
    for _ in range(data.draw(st.integers(1, 3), "scales")):
        for _ in range(data.draw(st.integers(0, 12), "cycles")):
            if not cycle(world):
                world.now += 1.0
            if world.outcome:
                return
        total = data.draw(st.integers(1, 16), "replicas then")
        scaled(world, total, floor(total))
    for _ in range(50):
        run(world)
        if world.outcome:
            break
        world.now += 1.0
    assert (world.outcome, counts(world), len(world.new)) == ("done", (0, total), total)
