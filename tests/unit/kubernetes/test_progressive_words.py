"""What people and other tools say to a rollout, and how it ends: in a pure model of Knative."""

from __future__ import annotations

import dataclasses
import random

import pytest
from msgspec.structs import replace

from farmd.kubernetes.knative import record, traffic
from farmd.kubernetes.knative.facts import Bounds, Traffic, Turn
from farmd.kubernetes.knative.objects import (
    PAUSED,
    PROMOTE,
    RESUMED,
    RETRY,
    REVERT,
    UNREACHABLE,
    AutoscalerSpec,
)
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from tests.knative_model import LATEST, World
from tests.knative_worlds import entry

OLD, NEW, NEWER = "web-00001", "web-00002", "web-00003"
PACE = Settings(ratio=20)


@pytest.fixture
def world() -> World:
    """A service of ten pods at rest."""
    found = World(random.Random(1), PACE, Bounds(10, 30))
    found.settle()
    return found


def pushed(world: World, shares: dict[str, int], bounds: Bounds = Bounds(10, 30)) -> str:  # noqa: B008
    """Another revision, in the stage that shows these shares."""
    name = world.push(bounds)
    reached(world, shares)
    return name


def reached(world: World, shares: dict[str, int]) -> None:
    """Go on until the route shows these shares."""
    for _ in range(2000):
        world.step()
        world.cycle()
        if world.shares == shares:
            return
    raise AssertionError(f"{shares} were never shown: {world.seen()}")


def blocked(world: World) -> str:
    """Why nothing goes on; empty: nothing blocks it."""
    for _ in range(200):
        world.step()
        world.cycle()
    found = decide(world.snapshot()).blocked
    return found.text if found is not None else ""


def turns(world: World) -> list[str]:
    """The turns until now."""
    return [each.action for each in world.written if isinstance(each, Turn)]


def test_a_pause_holds_in_mid_stage_until_it_is_taken_back(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    world.say(PAUSED, "true")
    before = len(world.written)
    assert blocked(world) == "paused; farmctl rollout resume ksvc/shop/web continues it"
    assert [each.action for each in world.written[before:]] == ["pause"]
    world.say(PAUSED, None)
    world.settle()
    assert world.shares == {NEW: 100}


def test_a_pause_holds_a_new_revision_s_pods_back(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    world.say(PAUSED, "true")
    world.push(Bounds(10))
    for _ in range(50):
        world.cycle()
    assert world.revisions[NEWER].bounds == Bounds(1)
    assert world.shares == {OLD: 80, NEW: 20}


def test_a_revert_goes_back_in_stages_and_stays_there(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.say(REVERT, "1")
    world.settle()
    assert world.shares == {OLD: 100}
    assert world.revisions[OLD].pods == 10
    assert world.revisions[NEW].bounds == Bounds(10, 30)
    assert "back" in turns(world)


def test_a_revert_after_the_end_goes_back_to_where_the_rollout_began(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    world.say(REVERT, "1")
    world.settle()
    assert world.shares == {OLD: 100}


def test_a_retry_tries_a_reverted_revision_again(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.say(REVERT, "1")
    world.settle()
    world.say(RETRY, NEW)
    world.settle()
    assert world.shares == {NEW: 100}


def test_another_push_after_a_revert_is_rolled_out(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.say(REVERT, "1")
    world.settle()
    world.push(Bounds(10))
    world.settle()
    assert world.shares == {NEWER: 100}


def test_a_promotion_reaches_the_end_in_one_stage(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    began = len(turns(world))
    world.say(PROMOTE, "1")
    world.settle()
    assert world.shares == {NEW: 100}
    assert "stage" not in turns(world)[began:]


@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
def test_a_promotion_over_two_former_revisions_reaches_the_end_in_one_stage(
    world: World, strategy: str
) -> None:
    world.settings = dataclasses.replace(PACE, strategy=strategy)
    pushed(world, {OLD: 60, NEW: 40})
    world.push(Bounds(10, 30))
    world.until(lambda: bool(world.shares.get(NEWER)))
    assert world.shares.keys() >= {OLD, NEW}
    began = len(turns(world))
    world.say(PROMOTE, "1")
    world.settle()
    assert world.shares == {NEWER: 100}
    assert "stage" not in turns(world)[began:]
    assert [each.pods for each in world.revisions.values()] == [0, 0, 10]


def test_a_push_in_mid_rollout_goes_on_from_where_it_stands(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.push(Bounds(10, 30))
    world.settle()
    assert world.shares == {NEWER: 100}
    assert [world.revisions[name].pods for name in (OLD, NEW, NEWER)] == [0, 0, 10]
    spec = world.record.spec if world.record else None
    assert spec is not None
    assert [each.revision_name for each in spec.initial_revisions] == [OLD, NEW]


@pytest.mark.parametrize("word", ["push", REVERT, PROMOTE])
def test_no_traffic_flows_back_to_pods_that_are_gone_where_people_turn_a_stage_under_way(
    world: World, word: str
) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.until(lambda: world.revisions[OLD].pods <= 6)
    if word == "push":
        world.push(Bounds(10, 30))
    else:
        world.say(word, "1")
    for _ in range(300):
        world.step()
        world.cycle()
        assert world.shares.get(OLD, 0) <= 10 * world.revisions[OLD].pods, world.seen()
    world.settle()
    assert world.shares == {{"push": NEWER, REVERT: OLD, PROMOTE: NEW}[word]: 100}


def test_a_service_that_is_opted_in_again_keeps_its_traffic_until_the_newcomer_has_its_pods(
    world: World,
) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.enabled = False
    world.settle()
    world.pin(entry(NEW, 100))
    for _ in range(200):
        world.step()
    world.push(Bounds(10, 30))
    world.pin(*LATEST)
    world.enabled = True
    for _ in range(10):
        world.cycle()
    assert [(each.revision_name, each.percent) for each in world.traffic] == [(NEW, 100)]
    world.settle()
    assert world.shares == {NEWER: 100}


def test_traffic_that_a_person_pins_goes_there_in_stages(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    world.pin(entry(OLD, 100))
    reached(world, {NEW: 80, OLD: 20})
    world.settle()
    assert world.shares == {OLD: 100}
    world.push(Bounds(10, 30))
    world.settle()
    assert world.shares == {OLD: 100}
    world.pin(*LATEST)
    world.settle()
    assert world.shares == {NEWER: 100}


def test_pods_of_a_revision_stay_while_it_bears_traffic_that_a_person_sent_there(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    world.pin(entry(OLD, 100))
    world.shares = {OLD: 100}  # the route follows the person, and farmd only later
    for _ in range(20):
        world.cycle()
    assert world.revisions[OLD].bounds == Bounds(10, 30)
    world.settle()
    assert world.shares == {OLD: 100}


def test_a_pin_is_said_when_it_was_written_also_once_it_is_on_record(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    snapshot = world.snapshot()
    frozen_since = world.now + 10.0
    assert record.said_at(snapshot.record, snapshot.service) < frozen_since
    world.now += 20.0
    world.pin(entry(OLD, 100))
    snapshot = world.snapshot()
    assert record.said_at(snapshot.record, snapshot.service) > frozen_since
    reached(world, {NEW: 80, OLD: 20})
    snapshot = world.snapshot()
    assert record.said_at(snapshot.record, snapshot.service) > frozen_since


def test_a_newcomer_gets_its_share_once_its_autoscaler_knows_of_the_route(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    snapshot = world.snapshot()
    assert traffic.pinned(snapshot)[0].percent == 80
    away = AutoscalerSpec(reachability=UNREACHABLE)
    found = {**snapshot.autoscalers, NEW: replace(snapshot.autoscalers[NEW], spec=away)}
    held = traffic.pinned(dataclasses.replace(snapshot, autoscalers=found))
    assert {each.revision_name: each.percent for each in held} == {OLD: 100, NEW: 0}


def test_traffic_that_a_person_splits_is_reached_in_one_jump(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    world.pin(entry(OLD, 30), entry("", 70, newest=True))
    world.settle()
    assert world.shares == {OLD: 30, NEW: 70}
    assert world.traffic[1].revision_name == NEW


@pytest.mark.parametrize("split", [False, True])
def test_a_jump_moves_traffic_once_the_newcomer_has_all_of_its_pods(world: World, split: bool) -> None:
    name, before = NEW, {OLD: 100}
    if split:
        pushed(world, {NEW: 100})
        world.settle()
        world.pin(entry(OLD, 30), entry("", 70, newest=True))
        world.settle()
        name, before = NEWER, {OLD: 30, NEW: 70}
    else:
        world.settings = Settings(enabled=False)
    world.push(Bounds(10, 30))
    while not world.shares.get(name):
        assert {each: share for each, share in world.shares.items() if share} == before
        world.step()
        world.cycle()
    assert world.revisions[name].pods == 10
    world.settle()
    assert world.shares == ({OLD: 30, NEWER: 70} if split else {NEW: 100})


def test_entries_for_a_tag_alone_are_carried_through(world: World) -> None:
    world.pin(entry("", 100, newest=True), entry(OLD, None, tag="stable"))
    world.settle()
    pushed(world, {OLD: 80, NEW: 20})
    assert [(each.revision_name, each.tag) for each in world.traffic if each.tag] == [(OLD, "stable")]


TAGGED = entry(OLD, None, tag="stable")


def test_a_former_revision_with_a_tag_ends_with_the_bounds_that_people_gave(world: World) -> None:
    world.pin(entry("", 100, newest=True), TAGGED)
    world.settle()
    pushed(world, {NEW: 100})
    world.settle()
    assert TAGGED in world.traffic
    assert world.revisions[OLD].bounds == world.revisions[NEW].bounds == Bounds(10, 30)
    assert world.record is not None
    assert not world.record.metadata.finalizers


@pytest.mark.parametrize("percent", [0, 20])
def test_a_tag_that_somebody_adds_stays_and_pins_nothing(world: World, percent: int) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    shares = {each.revision_name: each for each in world.traffic}
    if percent:
        shares[NEW] = replace(shares[NEW], tag="mine")
    world.pin(*shares.values(), *([] if percent else [entry(NEW, 0, tag="mine")]))
    world.settle()
    assert world.shares == {NEW: 100}
    assert world.traffic[1:] == (entry(NEW, None, tag="mine"),)
    world.push(Bounds(10, 30))
    world.settle()
    assert world.shares == {NEWER: 100}


def test_a_tag_that_somebody_adds_for_a_revision_that_is_not_there_blocks_and_stays(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    asked = (*world.traffic, entry("web-00007", None, tag="mine"))
    world.pin(*asked)
    assert blocked(world) == (f"spec.traffic[2].revisionName: found web-00007, expected one of {OLD}, {NEW}")
    assert world.traffic == asked


def test_a_tag_of_a_newcomer_that_breaks_does_not_keep_the_route_from_going_back(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.pin(*world.traffic, entry(NEW, None, tag="canary"))
    reached(world, {OLD: 40, NEW: 60})
    scale = world.revisions[NEW]
    scale.broken, scale.ready, scale.pods = True, False, 0
    reached(world, {OLD: 100})
    assert not any(each.tag for each in world.traffic)


def test_a_tool_that_writes_the_same_traffic_again_and_again_is_told_and_not_fought(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    for _ in range(5):
        world.pin(*LATEST, by="argocd-controller")
        for _ in range(5):
            world.cycle()
    assert blocked(world) == "spec.traffic is written by argocd-controller, too"
    assert world.traffic == LATEST
    ours = [each for each in world.written if isinstance(each, Traffic)]
    blocked(world)
    assert [each for each in world.written if isinstance(each, Traffic)] == ours


@pytest.mark.parametrize(("minutes", "blocks"), [(1, True), (5, True), (60, True), (180, False)])
def test_a_tool_is_told_at_its_third_write_however_slowly_it_writes(
    world: World, minutes: int, blocks: bool
) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    for number in range(1, 7):
        world.now += 60.0 * minutes
        world.pin(*LATEST, by="kustomize-controller")
        for _ in range(5):
            world.cycle()
        stands = blocks and number >= 3
        assert (world.traffic == LATEST) is stands
        found = decide(world.snapshot()).blocked
        assert (found is not None) is stands


def test_traffic_that_a_person_writes_in_between_lets_the_count_begin_anew(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    for _ in range(3):
        world.pin(*LATEST, by="kustomize-controller")
        world.settle()
        world.pin(entry(OLD, 100))
        world.settle()
    world.pin(*LATEST, by="kustomize-controller")
    world.settle()
    assert world.shares == {NEW: 100}


def test_a_pin_to_a_revision_that_is_not_there_blocks_and_leaves_the_traffic(world: World) -> None:
    world.pin(entry("web-00007", 100))
    assert blocked(world) == f"spec.traffic[0].revisionName: found web-00007, expected one of {OLD}"
    assert world.shares == {OLD: 100}


def test_bounds_that_somebody_edits_in_mid_stage_are_final_and_the_stage_s_stand_again(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    scale = world.revisions[OLD]
    scale.bounds, scale.own = Bounds(9, 20), set()
    world.settle()
    assert world.shares == {NEW: 100}
    assert world.revisions[OLD].bounds == Bounds(9, 20)


@pytest.mark.parametrize("halted", [False, True])
def test_bounds_that_somebody_edits_while_nothing_moves_stand_again(world: World, halted: bool) -> None:
    world.settings = dataclasses.replace(PACE, on_failure="pause", progress_deadline=1.0)
    pushed(world, {OLD: 60, NEW: 40})
    if halted:
        world.revisions[NEW].broken = True
        world.revisions[NEW].ready = False
    else:
        world.say(PAUSED, "true")
    text = blocked(world)
    assert ("halt" if halted else "pause") == turns(world)[-1]
    scale, shares = world.revisions[OLD], world.shares
    before = scale.bounds
    scale.bounds, scale.own = Bounds(9, 20), set()
    assert blocked(world) == text != ""
    assert (scale.bounds.least, world.shares) == (before.least, shares)
    assert scale.own


def test_a_release_leaves_the_traffic_and_gives_all_final_bounds_back(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.enabled = False
    world.settle()
    assert world.record is not None
    assert not world.record.metadata.finalizers
    assert [each.bounds for each in world.revisions.values()] == [Bounds(10, 30), Bounds(10, 30)]
    assert {each.revision_name: each.percent for each in world.traffic} == {OLD: 60, NEW: 40}
    world.enabled = True
    world.settle()
    assert world.shares in ({NEW: 100}, {OLD: 100})


@pytest.mark.parametrize("paused", [False, True])
def test_a_release_gives_a_newcomer_that_no_record_names_its_bounds_back_once(
    world: World, paused: bool
) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    if paused:
        world.say(PAUSED, "true")
    world.push(Bounds(10, 30))
    if paused:
        blocked(world)
        assert world.revisions[NEWER].bounds == Bounds(1, 30)
    world.enabled = False
    world.settle()
    assert world.revisions[NEWER].bounds == Bounds(10, 30)
    assert turns(world)[-1] == "release"


def test_a_word_that_was_said_while_the_label_was_away_is_none_of_the_next_rollout(world: World) -> None:
    world.enabled = False
    world.settle()
    world.say(REVERT, "1")
    world.enabled = True
    world.pin(*LATEST)
    world.push(Bounds(10, 30))
    world.settle()
    assert world.shares == {NEW: 100}


def test_a_pin_stays_where_the_label_is_taken_away_and_put_back(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    world.pin(entry(OLD, 100))
    world.settle()
    for enabled in (False, True):
        world.enabled = enabled
        world.settle()
    world.push(Bounds(10, 30))
    world.settle()
    assert world.shares == {OLD: 100}
    world.pin(*LATEST)
    world.settle()
    assert world.shares == {NEWER: 100}


def test_a_deleted_record_is_made_anew_and_starts_no_rollout(world: World) -> None:
    pushed(world, {NEW: 100})
    world.settle()
    world.pin(entry(OLD, 100))
    world.settle()
    world.record, world.spas = None, {}
    world.settle()
    assert world.shares == {OLD: 100}


def halted(world: World, shares: dict[str, int], *, ready: bool = True) -> str:
    """A newcomer breaks in the stage that shows these shares, and halts the rollout; why nothing goes on."""
    world.settings = Settings(ratio=20, on_failure="pause")
    pushed(world, shares)
    scale = world.revisions[NEW]
    scale.broken, scale.ready, scale.pods = True, ready, 0
    blocked(world)
    world.now += 700
    text = blocked(world)
    assert turns(world)[-1] == "halt"
    return text


def test_a_fault_halts_where_people_want_that_and_a_person_resumes(world: World) -> None:
    assert halted(world, {OLD: 80, NEW: 20}).startswith(f"600 s without progress: {NEW}: ExitCode1")
    world.revisions[NEW].broken = False
    world.say(RESUMED, "1")
    world.settle()
    assert world.shares == {NEW: 100}


def test_traffic_of_others_is_taken_back_while_a_fault_holds_the_rollout(world: World) -> None:
    halted(world, {OLD: 60, NEW: 40})
    shares = world.shares
    world.pin(*LATEST, by="helm")
    blocked(world)
    assert world.shares == shares
    assert (turns(world)[-1], "helm" in str(world.seen()["annotations"])) == ("word", True)


def test_a_fault_that_holds_the_rollout_gives_no_traffic_to_a_newcomer_that_recovers(world: World) -> None:
    halted(world, {OLD: 60, NEW: 40}, ready=False)
    assert world.shares == {OLD: 100}
    world.revisions[NEW].broken = False
    blocked(world)
    assert world.shares == {OLD: 100}
    world.say(RESUMED, "1")
    world.settle()
    assert world.shares == {NEW: 100}


def test_want_of_room_blocks_after_the_deadline_until_there_is_some(
    world: World,
) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    world.room = 10
    assert blocked(world) == ""
    world.now += 700
    assert blocked(world) == f"600 s without progress: {NEW} has 2 of 4 pods"
    world.room = 100
    world.settle()
    assert world.shares == {NEW: 100}


def test_no_stage_begins_while_the_newcomer_lacks_the_pods_of_the_one_that_is_done(world: World) -> None:
    world.push(Bounds(10, 30))
    world.until(lambda: "stage-done" in turns(world)[4:])
    world.revisions[NEW].pods = 0
    assert decide(world.snapshot()).turn is None
    world.settle()
    assert world.shares == {NEW: 100}


def test_an_overdue_stage_gets_more_traffic_where_all_of_its_pods_are_there() -> None:
    world = World(random.Random(1), Settings(ratio=10), load=7)
    world.settle()
    world.push(Bounds())
    reached(world, {OLD: 85, NEW: 15})
    for _ in range(100):
        world.step()
        world.cycle()
    world.settle()
    assert world.shares == {NEW: 100}


def test_a_bound_that_is_no_number_blocks_with_revision_and_annotation(world: World) -> None:
    pushed(world, {OLD: 80, NEW: 20})
    found = world.snapshot()
    revision = found.revisions[NEW]
    annotations = {**revision.metadata.annotations, "autoscaling.knative.dev/min-scale": "many"}
    bad = replace(revision, metadata=replace(revision.metadata, annotations=annotations))
    plan = decide(dataclasses.replace(found, revisions={**found.revisions, NEW: bad}))
    assert plan.blocked is not None
    assert plan.blocked.text == (
        f"revision {NEW}: autoscaling.knative.dev/min-scale: found 'many', expected a whole number"
    )


def test_a_push_in_the_middle_of_the_way_back_goes_forward_and_may_fail_in_its_turn(world: World) -> None:
    pushed(world, {OLD: 60, NEW: 40})
    world.say(REVERT, "1")
    while turns(world)[-1] != "begin" or "back" not in turns(world):
        world.cycle()
    world.push(Bounds(10, 30), broken=True)
    blocked(world)
    world.now += 700
    world.settle()
    assert world.shares == {OLD: 100}
    assert world.record is not None
    assert world.record.metadata.annotations["farmd.io/refused"] == f"{NEW},{NEWER}"


def test_traffic_of_others_is_taken_back_between_two_stages(world: World) -> None:
    """Else the revision that it takes the traffic from never gets the pods that the next stage waits for."""
    world.settings = Settings(ratio=20, strategy="resourceutil")
    pushed(world, {OLD: 60, NEW: 40})
    world.say(REVERT, "1")
    world.until(lambda: turns(world)[-1] == "stage-done" and bool(world.shares.get(OLD)))
    world.revisions[OLD].pods, world.shares = 0, {NEW: 100}
    world.pin(*LATEST, by="kubectl")
    world.settle()
    assert world.shares == {OLD: 100}
