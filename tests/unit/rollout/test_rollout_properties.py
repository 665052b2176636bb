"""P1 to P10 of a rolling update from any state of its pods, reached or not: flaps, losses and drains come
at any moment, and whoever takes over finds what is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from farmd.rollout import progress
from store.pods import Place
from store.rollouts import RolloutState
from tests.effort import tries
from tests.rollout_worlds import NEW, NOW, OLD, POD, World, pod, rollout

KINDS: dict[str, dict[str, Any]] = {
    "good": {},
    "fresh": {"settles_in": 5.0},
    "sick": {"healthy": False},
    "silent": {"healthy": None},
    "absent": {"absent": True},
    "lost": {"lost": NOW - 500},
    "drained": {"draining": "gentle", "retained": False},
    "forced": {"draining": "forced", "retained": False},
}
MOST = 6
FREE = ("sick", "lost", "forced")
"""Pods of these kinds serve nobody, or must go whatever the floor is."""


@st.composite
def sides(draw: st.DrawFn, side: str) -> dict[Place, str]:
    """The kinds of a side's pods."""
    kinds = draw(st.lists(st.sampled_from(["good", *KINDS]), max_size=MOST))
    return {(f"{side}-{number:02}", POD): kind for number, kind in enumerate(kinds)}


@dataclasses.dataclass
class Case:
    """A world, and of which kind each pod is."""

    world: World
    kinds: dict[Place, str]

    @property
    def floor(self) -> int:
        return progress.floor(self.world.snapshot())

    def of(self, places: Iterable[Place], *kinds: str) -> set[Place]:
        return {place for place in places if self.kinds[place] in kinds}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A rollout that moves, forward or back, at any stage."""
    old, new = draw(sides("old")), draw(sides("new"))
    missing = [draw(st.sampled_from([0, 0, 0, 1, 2])) for _ in range(2)]
    od, nd = max(0, len(old) + missing[0]), max(0, len(new) + missing[1])
    total = draw(st.integers(max(1, nd), max(1, nd) + MOST))
    began = draw(st.integers(od, od + MOST))
    minimum = draw(st.integers(0, total - 1))
    parts = sorted({draw(st.integers(1, total)) for _ in range(draw(st.integers(0, 2)))} - {total})
    back = draw(st.booleans())
    assume(began or not back)
    begun = rollout(
        total, minimum, began=began, policy={"stages": [*parts, "100%"], "progress_deadline": 900.0}
    )
    pods = {
        side: {place: pod(side, **{"at": NOW - 1, **KINDS[kind]}) for place, kind in found.items()}
        for side, found in ((OLD, old), (NEW, new))
    }
    world = World(
        begun,
        pods[OLD],
        pods[NEW],
        counts={OLD: od, NEW: nd},
        state=RolloutState(phase="moving", back=back, stage=draw(st.integers(0, len(parts))), since=NOW - 1),
        free=[f"free-{number:02}" for number in range(draw(st.sampled_from([0, 3, 40])))],
    )
    return Case(world, old | new)


def available(case: Case) -> int:
    """Settled pods of both sides: at most as many of each as it should have."""
    world = case.world
    found = ((world.old, world.counts[OLD]), (world.new, world.counts[NEW]))
    return sum(min(len(case.of(pods, "good", "drained")), count) for pods, count in found)


@settings(max_examples=tries(250))
@given(cases())
def test_p1_to_p5_of_one_transaction(case: Case) -> None:
    world, plan = case.world, case.world.decide()
    assume(plan.turn is None)
    source, target = world.snapshot().sides
    goal, moves = progress.goal(world.snapshot()), plan.moves
    stay, there = (goal.new, goal.old) if world.snapshot().back else (goal.old, goal.new)
    leave = [move.source for move in moves.moves if move.source is not None]
    assert len(leave) == len(set(leave))

    costly = set(leave) - case.of(leave, *FREE)
    assert len(costly) <= max(0, available(case) - case.floor), "P1"
    total, began = world.rollout.replicas, world.rollout.started_from
    after = source.desired - moves.removed + target.desired + moves.added
    assert after <= max(total, began, source.desired + target.desired), "P2"
    assert not moves.added or target.desired + moves.added <= there, "P3"
    assert not moves.removed or source.desired - moves.removed >= stay, "P3"
    serving = case.of((m.source for m in moves.moves if m.source in source.pods), "good", "fresh")  # type: ignore[misc]
    if serving and "no room" not in moves.short:
        assert not case.of(source.pods.keys() - set(leave), *FREE), "P4"
    ends = began if world.snapshot().back else total
    growth = max(0, ends - source.desired - target.desired)
    coming = target.desired + moves.added - target.settled
    # Where there were more pods than there are to be, their surplus is headroom, too (p2's arithmetic).
    window = max(1, max(ends, source.desired + target.desired) - case.floor) + growth
    if not world.snapshot().back and moves.added:
        assert coming <= max(window, target.desired - target.settled), "P5"
    assert not plan.empty or plan.waiting or plan.blocked, "P8"


HOLDS: tuple[dict[str, Any], ...] = (
    {"frozen": "no leader"},
    {"frozen": "no leader", "frozen_for": 60.0},
    {"locked": "user/ada@desk"},
    {"busy": "a move is ended first"},
    {"locks": False},
)


@settings(max_examples=tries(80))
@given(cases(), st.sampled_from(HOLDS))
def test_p6_what_holds_it_moves_and_repairs_nothing(case: Case, hold: dict[str, Any]) -> None:
    plan = case.world.decide(**hold)
    assert (plan.moves.moves, plan.repairs) == ((), ())


@settings(max_examples=tries(80))
@given(cases(), st.randoms(use_true_random=False))
def test_p10_the_same_world_gives_the_same_plan_in_whatever_order_it_was_read(case: Case, rng: Any) -> None:
    plan = case.world.decide()
    for name in ("old", "new"):
        pods = list(getattr(case.world, name).items())
        rng.shuffle(pods)
        setattr(case.world, name, dict(pods))
    assert case.world.decide() == plan


@settings(max_examples=tries(120))
@given(st.data())
def test_p7_p9_whatever_happened_it_comes_to_its_end_once_all_is_well(data: st.DataObject) -> None:
    """There is room, agents act, and every pod becomes healthy: the way is no longer than its pods."""
    total, began = data.draw(st.integers(1, MOST)), data.draw(st.integers(0, MOST))
    parts = sorted({data.draw(st.integers(1, total)) for _ in range(data.draw(st.integers(0, 2)))} - {total})
    policy = {"stages": [*parts, "100%"], "progress_deadline": 900.0}
    begun = rollout(total, data.draw(st.integers(0, total - 1)), began=began, policy=policy)
    pods = {(f"old-{number:02}", POD): pod(OLD) for number in range(began)}
    world = World(begun, pods, free=[f"free-{number:02}" for number in range(60)])
    stage, back = 0, False
    troubled = data.draw(st.integers(0, 12), "steps of trouble")
    for step in range(troubled + 6 * (total + began) + 30):
        if step < troubled:
            trouble(world, data)
        plan = world.step()
        if world.outcome:
            break
        assert world.state is not None
        assert (world.state.stage >= stage, world.state.back >= back) == (True, True), "P9"
        stage, back = world.state.stage, world.state.back
        if step >= troubled and plan.empty:
            well(world)
    assert world.outcome == ("reverted" if back else "done"), plan


def trouble(world: World, data: st.DataObject) -> None:
    """Some pods become something else, and a person may want the old version back."""
    for side, pods in ((OLD, world.old), (NEW, world.new)):
        for place in data.draw(st.sets(st.sampled_from(sorted(pods)), max_size=2)) if pods else ():
            kind = data.draw(st.sampled_from([each for each in KINDS if each != "silent"]))
            pods[place] = pod(side, **{"at": world.now, **KINDS[kind]})
    if world.rollout.started_from and data.draw(st.integers(0, 11)) == 0:
        world.rollout = msgspec.structs.replace(world.rollout, wish="revert")


def well(world: World) -> None:
    """All pods run where they stand, and have for long enough."""
    for side, pods in ((OLD, world.old), (NEW, world.new)):
        for place in pods:
            pods[place] = pod(side, at=world.now)
