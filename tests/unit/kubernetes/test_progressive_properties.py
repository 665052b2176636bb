"""What holds in every world, whatever happens in whatever order (K1 to K9 are the rules of the design)."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import Phase, assume, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import structs

from farmd.kubernetes.knative import bounds, record, scales
from farmd.kubernetes.knative.facts import Bounds, RevisionBounds, Snapshot, Traffic, Turn, Write
from farmd.kubernetes.knative.objects import CLASS, HPA, PAUSED, RESUMED, routed
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from tests.effort import tries
from tests.knative_model import LATEST, Scale, World
from tests.knative_worlds import FREE, entry

OLD, NEW = "web-00001", "web-00002"
# A world is as large as its failure shows it: to shrink one takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
sizes = st.integers(1, 12)
ratios = st.integers(1, 100)
seeds = st.integers(0, 10_000)
paces = st.builds(Settings, ratio=ratios, strategy=st.sampled_from(["availability", "resourceutil"]))


class Checked(World):
    """A world in which the rules are checked after each step; ``final`` are the bounds that people gave."""

    def __init__(self, seed: int, pace: Settings, bounds: Bounds = FREE, load: int = 0) -> None:
        self.final: dict[str, Bounds] = {}
        super().__init__(random.Random(seed), pace, bounds, load)

    def push(self, bounds: Bounds, *, broken: bool = False) -> str:
        name = super().push(bounds, broken=broken)
        self.final[name] = bounds
        return name

    def _turn(self, turn: Turn) -> None:
        super()._turn(turn)
        snapshot = self.snapshot()
        assert not scales.target_names(snapshot.record.spec.target_revisions) & set(
            record.refused(snapshot)
        )  # K6

    def _write(self, write: Write) -> None:
        if isinstance(write, Traffic):  # K1
            shares = [each.percent or 0 for each in write.entries if not each.tag]
            assert sum(shares) == 100
            assert all(self.revisions[each.revision_name].ready for each in write.entries)
            assert not any(each.latest_revision for each in write.entries)
        if isinstance(write, RevisionBounds):
            self._within(write)
        super()._write(write)

    def _within(self, write: RevisionBounds) -> None:
        """K4: bounds of a stage only narrow. K2: old ones fall only once the route shows the shares."""
        final = self.final[write.revision]
        assert (write.bounds.least or 0) <= (final.least or 0)
        assert not final.most or (write.bounds.most or math.inf) <= final.most
        before = self.revisions[write.revision].bounds
        falls = (write.bounds.least or 0) < (before.least or 0)
        shown, due = self.shares, routed(self.traffic)
        shrinks = due.get(write.revision, 0) <= shown.get(write.revision, 0)
        if self.settings.strategy == "availability" and falls and shrinks and shown.get(write.revision):
            assert {name: each for name, each in shown.items() if each} == {
                name: each for name, each in due.items() if each
            }

    def rests(self, name: str) -> None:
        """Everything is as people asked, and nothing of a stage is left (K4, K5)."""
        assert self.shares == {name: 100}, self.seen()
        assert self.record is not None
        assert not self.record.metadata.finalizers
        for each, scale in self.revisions.items():
            assert scale.bounds == self.final[each], (each, self.seen())
        assert self.revisions[name].pods == max(self.final[name].least or 0, self.load), self.seen()
        count = len(self.written)
        assert self.cycle().empty
        assert len(self.written) == count


@examples(phases=PHASES, max_examples=tries(40), deadline=None)
@given(seeds, paces, sizes, sizes)
def test_a_push_ends_with_the_newcomer_alone_within_the_final_bounds(
    seed: int, pace: Settings, size: int, after: int
) -> None:
    world = Checked(seed, pace, Bounds(size))
    world.settle()
    world.rests(OLD)
    world.push(Bounds(after))
    world.settle()
    world.rests(NEW)


@examples(phases=PHASES, max_examples=tries(40), deadline=None)
@given(seeds, ratios, sizes)
def test_k8_equal_sizes_never_have_more_than_a_stage_besides(seed: int, ratio: int, size: int) -> None:
    class Peaked(Checked):
        peak = 0

        def check(self) -> None:
            self.peak = max(self.peak, sum(each.pods for each in self.revisions.values()))

    world = Peaked(seed, Settings(ratio=ratio), Bounds(size, size))
    world.settle()
    world.push(Bounds(size, size))
    world.settle()
    world.rests(NEW)
    assert world.peak <= size + max(1, math.ceil(size * ratio / 100))


@examples(phases=PHASES, max_examples=tries(40), deadline=None)
@given(seeds, paces, st.integers(0, 12))
def test_traffic_driven_revisions_come_to_their_end_too(seed: int, pace: Settings, load: int) -> None:
    world = Checked(seed, pace, FREE, load)
    world.settle()
    world.push(FREE)
    world.settle()
    world.rests(NEW)


@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
def test_bounds_of_0_to_0_that_people_gave_are_no_bounds_and_stay(strategy: str) -> None:
    world = Checked(1, Settings(ratio=50, strategy=strategy), Bounds(0, 0), load=6)
    world.settle()
    world.rests(OLD)
    world.push(Bounds(0, 0))
    world.settle()
    world.rests(NEW)


class Hpa(Checked):
    """Its revisions have autoscalers of the class HPA, which keep one pod of each."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        classed = {
            name: structs.replace(
                each,
                metadata=structs.replace(
                    each.metadata, annotations={**each.metadata.annotations, CLASS: HPA}
                ),
            )
            for name, each in found.revisions.items()
        }
        return replace(found, revisions=classed)

    def desired(self, name: str) -> int:
        return max(1, super().desired(name))


@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
@pytest.mark.parametrize("size", [Bounds(3, 3), Bounds(0, 5), Bounds(None, 5), FREE])
def test_a_rollout_of_the_class_hpa_ends_with_one_pod_of_the_old_one(strategy: str, size: Bounds) -> None:
    world = Hpa(1, Settings(ratio=50, strategy=strategy), size)
    world.settle()
    world.push(size)
    world.settle()
    assert (world.shares, world.revisions[OLD].pods) == ({NEW: 100}, 1)
    assert world.revisions[NEW].pods == max(size.least or 0, 1)
    assert [each.bounds for each in world.revisions.values()] == [size, size]
    assert world.record is not None
    assert not world.record.metadata.finalizers


@examples(phases=PHASES, max_examples=tries(40), deadline=None)
@given(seeds, ratios, sizes)
def test_k3_where_old_pods_go_first_no_stage_asks_for_more_than_before(
    seed: int, ratio: int, size: int
) -> None:
    class Tight(Checked):
        def check(self) -> None:
            least = [each.spec.stage_min_scale or 0 for each in self.spas.values()]
            assert sum(least) <= size, self.seen()

    world = Tight(seed, Settings(ratio=ratio, strategy="resourceutil"), Bounds(size, size))
    world.settle()
    world.room = size + 1  # Knative starts one pod of a new revision, whatever its bounds are
    world.push(Bounds(size, size))
    world.settle()
    world.rests(NEW)


def _pushed(seed: int, pace: Settings, size: int, later: int) -> Checked:
    """A world so many steps after a push to a revision of as many pods."""
    world = Checked(seed, pace, Bounds(size))
    world.settle()
    world.push(Bounds(size))
    for _ in range(later):
        world.step()
        world.cycle()
    return world


@examples(phases=PHASES, max_examples=tries(40), deadline=None)
@given(seeds, paces, sizes, st.integers(0, 60))
def test_a_broken_newcomer_ends_with_the_old_one_and_is_refused(
    seed: int, pace: Settings, size: int, later: int
) -> None:
    world = _pushed(seed, pace, size, later)
    over = scales.rollout(world.snapshot()).ready is True
    assume(not over or later == 0)
    world.revisions[NEW] = Scale(
        world.revisions[NEW].bounds, world.revisions[NEW].own, world.revisions[NEW].at, broken=True
    )
    for _ in range(4):
        _until_quiet(world)
        world.now += 700.0
    assert world.record is not None
    assert world.record.metadata.annotations["farmd.io/refused"] == NEW, world.seen()
    assert world.shares[OLD] == 100, world.seen()
    assert world.revisions[OLD].pods == size


def _until_quiet(world: World) -> None:
    for _ in range(400):
        moved, plan = world.step(), world.cycle()
        world.check()
        if not moved and plan.empty:
            return


ACTS = ["push", "broken push", "pin", "follow", "revert", "promote", "retry", "pause", "break", "fill"]
ACTS += ["split", "tag", "edit", "release", "enable"]


# People take the traffic from the old revision while a stage of the way back is done, and the next not begun.
BETWEEN_STAGES = [
    ("promote", 10),
    ("push", 9),
    ("revert", 12),
    ("pause", 22),
    ("pause", 22),
    ("revert", 30),
]


def _act(world: Checked, act: str, size: int) -> None:
    """Something that people or machines do; the worst of each."""
    serving = sorted(name for name, each in world.revisions.items() if each.ready)
    match act:
        case "push" | "broken push":
            world.push(Bounds(size, size), broken=act != "push")
        case "pin":
            world.pin(entry(world.rng.choice(serving), 100))
        case "split":
            world.pin(entry(serving[0], 30), entry("", 70, newest=True))
        case "tag":
            world.pin(*world.traffic, entry(world.rng.choice(serving), None, tag=f"{world.now}"))
        case "edit":
            name = world.rng.choice(sorted(world.revisions))
            world.final[name] = Bounds(world.rng.randint(0, size), size)
            world.revisions[name].bounds, world.revisions[name].own = world.final[name], set()
        case "release" | "enable":
            world.enabled = act == "enable"
        case "follow":
            world.pin(*LATEST)
        case "revert" | "promote" | "retry":
            world.say(f"rollout.farmd.io/{act}", f"{world.now}")
        case "pause":
            world.say(PAUSED, "true")
        case "break":
            world.revisions[world.rng.choice(serving)].broken = True
        case "fill":
            world.room = sum(each.pods for each in world.revisions.values())


@examples(phases=PHASES, max_examples=tries(60), deadline=None)
@given(
    seeds,
    paces,
    st.sampled_from(["revert", "pause"]),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 30)), min_size=1, max_size=6),
)
@example(5499, Settings(ratio=25, strategy="resourceutil"), "revert", 4, BETWEEN_STAGES)
def test_k9_every_stage_ends_by_its_goal_a_fault_or_a_person(
    seed: int, pace: Settings, on_failure: Literal["revert", "pause"], size: int, story: list[tuple[str, int]]
) -> None:
    world = Checked(seed, replace(pace, on_failure=on_failure), Bounds(size, size))
    world.settle()
    for act, later in story:
        _act(world, act, size)
        for _ in range(later):
            world.step()
            world.cycle()
    for _ in range(4):
        _until_quiet(world)
        world.now += 700.0
    plan = decide(world.snapshot())
    assert plan.empty, world.seen()
    over = not world.enabled or scales.rollout(world.snapshot()).ready is True
    assert over or plan.blocked is not None, world.seen()
    world.enabled = True
    world.room = 10_000
    for each in world.revisions.values():
        each.broken = False
    world.say(PAUSED, None)
    world.now += 700.0
    world.pin(*LATEST, by="kubectl")
    world.say(RESUMED, "at last")
    world.settle()
    assert scales.rollout(world.snapshot()).ready is True, world.seen()


@examples(phases=PHASES, max_examples=tries(30), deadline=None)
@given(seeds, paces, sizes, st.integers(0, 40))
def test_k7_under_a_freeze_no_bounds_fall_and_no_traffic_moves(
    seed: int, pace: Settings, size: int, later: int
) -> None:
    world = _pushed(seed, pace, size, later)
    world.frozen = "somebody doubts it"
    began = len(world.written)
    before = {name: each.bounds for name, each in world.revisions.items()}
    for _ in range(60):
        world.step()
        world.cycle()
    assert not [each for each in world.written[began:] if isinstance(each, Traffic)]
    held = NEW if not world.written[:began] or before[NEW] == Bounds(size) else ""
    for name, each in world.revisions.items():
        assert name == held or (each.bounds.least or 0) >= (before[name].least or 0)
    world.frozen = None
    world.settle()
    world.rests(NEW)


def test_bounds_of_a_stage_never_widen_the_final_ones() -> None:
    assert bounds.merge(Bounds(2, 5), Bounds(3, 6)) == (2, 5)
