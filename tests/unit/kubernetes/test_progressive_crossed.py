"""Words, facts and hands that cross in the middle of a rollout: in a pure model of Knative.

Several people speak at once, a tool writes traffic for an hour, revisions are deleted, and farms plan from
what was so a while ago.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque

import pytest
from msgspec.structs import replace

from farmd.kubernetes.knative import commands
from farmd.kubernetes.knative.facts import Bounds, Plan, Reap, Snapshot, Traffic, Turn, Write
from farmd.kubernetes.knative.objects import PAUSED, PROMOTE, REVERT, AutoscalerStatus
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.knative.view import FoundService
from tests.knative_model import LATEST, World
from tests.people import person
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked
from tests.unit.kubernetes.test_progressive_words import reached, turns

PACE, SIZE = Settings(ratio=20), Bounds(10, 30)


class Vague(Checked):
    """Its autoscaler was restarted, and does not know yet how many pods there are, while ``vague``."""

    vague = False

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        if not self.vague:
            return found
        status = AutoscalerStatus(desired_scale=-1, actual_scale=-1)
        unknown = {name: replace(each, status=status) for name, each in found.autoscalers.items()}
        return dataclasses.replace(found, autoscalers=unknown)


def moving(world: World, shares: dict[str, int]) -> None:
    """A push, in the stage that shows these shares."""
    world.settle()
    world.push(SIZE)
    reached(world, shares)


def test_a_revert_is_kept_while_the_number_of_pods_is_not_known() -> None:
    world = Vague(1, PACE, SIZE)
    moving(world, {OLD: 60, NEW: 40})
    world.vague = True
    world.say(REVERT, "1")
    for _ in range(20):
        world.cycle()
    assert "word" not in turns(world)
    world.vague = False
    world.settle()
    world.rests(OLD)


def test_a_newcomer_that_failed_is_not_halted_because_the_number_of_pods_is_not_known() -> None:
    world = Vague(1, PACE, SIZE)
    moving(world, {OLD: 60, NEW: 40})
    world.revisions[NEW].broken, world.revisions[NEW].ready, world.vague = True, False, True
    world.now += 700.0
    for _ in range(20):
        world.cycle()
    assert "halt" not in turns(world)
    world.vague = False
    world.settle()
    assert "back" in turns(world)
    assert world.shares == {OLD: 100}


def test_people_are_told_when_no_stage_can_begin_because_the_number_of_pods_is_not_known() -> None:
    world = Vague(1, PACE, SIZE)
    world.settle()
    world.push(SIZE)
    while "stage-done" not in turns(world)[4:]:
        world.step()
        world.cycle()
    world.vague = True
    assert decide(world.snapshot()).blocked is None
    world.now += 700.0
    late = decide(world.snapshot()).blocked
    assert late is not None
    assert late.text == f"600 s without progress: the number of pods of {NEW} is unknown"


@pytest.mark.parametrize("first", [REVERT, PROMOTE])
def test_of_a_revert_and_a_promotion_at_once_the_revert_counts_and_goes_in_stages(first: str) -> None:
    world = Checked(1, PACE, SIZE)
    moving(world, {OLD: 60, NEW: 40})
    for word in sorted((REVERT, PROMOTE), key=lambda each: each != first):
        world.say(word, "1")
    began = len(world.written)
    world.settle()
    world.rests(OLD)
    shares = [write.entries for write in world.written[began:] if isinstance(write, Traffic)]
    assert len(shares) >= 3, "it went back in one jump"


def test_a_tool_that_writes_its_traffic_each_minute_is_left_alone_after_three_times() -> None:
    world = World(random.Random(1), PACE, SIZE)
    moving(world, {OLD: 80, NEW: 20})
    for _ in range(60):
        if world.traffic != LATEST:
            world.pin(*LATEST, by="argocd-controller")
        for _ in range(5):
            world.cycle()
        world.now += 60.0
    blocked = decide(world.snapshot()).blocked
    assert blocked is not None
    assert blocked.text == "spec.traffic is written by argocd-controller, too"
    assert world.traffic == LATEST
    ours = [each for each in world.written if isinstance(each, Traffic)]
    assert len(ours) <= 8, "it was fought"


class Deleted(Checked):
    """A revision is deleted, and Knative makes the newest one anew under its name."""

    def delete(self, name: str) -> None:
        self.lost = self.revisions.pop(name)

    def remake(self, name: str) -> None:
        """Another object: nothing of farmd's is on it."""
        self.revisions[name] = dataclasses.replace(
            self.lost, bounds=self.final[name], own=set(), pods=0, ending=0, ready=False
        )


def test_a_newest_revision_that_is_deleted_in_mid_stage_and_made_anew_is_rolled_out_all_the_same() -> None:
    world = Deleted(1, PACE, SIZE)
    moving(world, {OLD: 60, NEW: 40})
    world.delete(NEW)
    world.shares = {OLD: 60, NEW: 40}
    for _ in range(10):
        world.cycle()
    moved = [each for each in world.written if isinstance(each, Traffic)][-1]
    assert [(each.revision_name, each.percent) for each in moved.entries] == [(OLD, 100)]
    world.shares = {OLD: 100}
    world.remake(NEW)
    world.settle()
    world.rests(NEW)


def test_a_former_revision_that_is_deleted_in_mid_stage_leaves_its_traffic_to_the_newcomer() -> None:
    world = Deleted(1, PACE, SIZE)
    moving(world, {OLD: 60, NEW: 40})
    world.delete(OLD)
    world.settle()
    world.rests(NEW)
    assert OLD not in world.spas


class Late(Checked):
    """Two farms in turn, one of which plans from what was so up to ``lag`` changes ago. The API server takes
    a write only if its object is still the version that was read (R16).
    """

    def __init__(self, seed: int, pace: Settings, lag: int) -> None:
        self.seen: deque[Snapshot] = deque(maxlen=lag)
        super().__init__(seed, pace, Bounds(4, 4))

    def cycle(self) -> Plan:
        now = self.snapshot()
        self.seen.append(now)
        read = self.rng.choice(self.seen)
        plan = decide(dataclasses.replace(read, now=self.now))
        for each in filter(None, (plan.turn, *plan.writes)):
            if _version(read, each) == _version(self.snapshot(), each):
                self.carry_out(each)
        return decide(now)

    def rests(self, name: str) -> None:
        self.seen.clear()
        super().rests(name)


def _version(found: Snapshot, change: Turn | Write) -> object:
    """What tells one version of an object from another."""
    match change:
        case Turn():
            return found.orchestrator
        case Traffic():
            return found.service
        case Reap():
            return change.pod in found.pods.get(change.pod.metadata.labels["revision"], ())
        case _:
            name = change.revision
            return found.spas.get(name), found.revisions.get(name)


@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
@pytest.mark.parametrize("seed", range(12))
def test_farms_whose_watches_are_late_come_to_the_same_end(seed: int, strategy: str) -> None:
    world = Late(seed, Settings(ratio=50, strategy=strategy), lag=1 + seed)
    world.settle()
    world.push(Bounds(4, 4))
    world.settle()
    world.rests(NEW)


async def test_one_resume_ends_both_a_pause_and_the_halt_of_a_fault() -> None:
    world = Checked(1, dataclasses.replace(PACE, on_failure="pause"), SIZE)
    moving(world, {OLD: 80, NEW: 20})
    scale = world.revisions[NEW]
    scale.broken, scale.pods = True, 0
    for _ in range(200):
        world.step()
        world.cycle()
    world.now += 700.0
    while turns(world)[-1] != "halt":
        world.cycle()
    world.say(PAUSED, "true")
    scale.broken = False
    async with person() as call:
        said = await commands.say(call, FoundService(world.snapshot()), "resume")
    for word, text in said.change.after.items():
        world.say(f"rollout.farmd.io/{word}", str(text))
    world.settle()
    world.rests(NEW)
