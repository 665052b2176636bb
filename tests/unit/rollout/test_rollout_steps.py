"""Steps, bounds and conditions: the vectors of Knative's progressive rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from farmd.rollout.staging import RolloutOrchestrator, StagePodAutoscaler, TargetRevision
from farmd.rollout.steps import (
    Rollout,
    RolloutStep,
    concluded,
    create_base_stage_pod_autoscaler,
    is_stage_scale_down_ready,
    is_stage_scale_up_ready,
    new_rollout_strategy,
    update_spa_for_rev_down,
    update_spa_for_rev_up,
)

Scale = tuple[int | None, int | None]
NONE: Scale = (None, None)


def rev(name: str = "r", percent: int | None = 50, goal: int | None = None, scale: Scale = NONE) -> Any:
    least, most = scale
    return TargetRevision(
        revision_name=name, percent=percent, target_replicas=goal, min_scale=least, max_scale=most
    )


def spa(desired: int | None, actual: int | None, terminating: int | None = 0) -> StagePodAutoscaler:
    return StagePodAutoscaler(name="r", desired=desired, actual=actual, terminating=terminating)


# -- is a revision where its stage wants it? ----------------------------------------------------
UP = [
    (NONE, None, NONE, False),
    (NONE, 10, (8, 15), False),
    ((10, 10), 10, (8, 15), True),
    ((8, 9), 10, (8, 15), True),
    ((11, 8), 10, (8, 15), True),
    ((11, 11), 10, (8, 15), True),
    ((11, 11), 11, (8, 15), True),
    ((7, 6), 7, (7, 7), False),
    ((7, 7), None, (7, 7), True),
    ((9, 9), None, (10, 10), False),
    ((9, 8), None, (10, 10), False),
    ((10, 10), None, (8, 10), True),
    ((8, 8), None, (8, 10), True),
    ((10, 10), None, (8, 9), False),
]


@pytest.mark.parametrize(("scale", "goal", "bounds", "expected"), UP)
def test_is_stage_scale_up_ready(scale: Scale, goal: int | None, bounds: Scale, expected: bool) -> None:
    assert is_stage_scale_up_ready(spa(*scale), rev(goal=goal, scale=bounds)) == expected


def test_what_nobody_knows_is_not_ready() -> None:
    assert not is_stage_scale_up_ready(spa(-1, 0), rev(goal=1))
    assert not is_stage_scale_up_ready(spa(3, None), rev(goal=1, scale=(1, 3)))
    assert is_stage_scale_up_ready(spa(0, 0), rev(goal=1))


DOWN = [
    (NONE, None, NONE, False),
    (NONE, 10, (8, 15), False),
    ((10, 10), 10, (8, 15), True),
    ((8, 9), 10, (8, 15), True),
    ((8, 11), 10, (8, 15), False),
    ((8, 9), 7, (7, 7), False),
    ((8, 9), None, (7, 7), False),
    ((9, 9), None, (10, 10), True),
    ((8, 9), None, (10, 10), True),
    ((10, 10), None, (8, 10), True),
    ((8, 8), None, (8, 10), True),
    ((10, 10), None, (8, 9), False),
]


@pytest.mark.parametrize(("scale", "goal", "bounds", "expected"), DOWN)
def test_is_stage_scale_down_ready(scale: Scale, goal: int | None, bounds: Scale, expected: bool) -> None:
    assert is_stage_scale_down_ready(spa(*scale), rev(goal=goal, scale=bounds)) == expected


# -- bounds -------------------------------------------------------------------------------------
def bounded(least: int | None, most: int | None) -> StagePodAutoscaler:
    return StagePodAutoscaler(name="r", stage_min=least, stage_max=most)


REV_UP = [
    (NONE, None, None, NONE, NONE),
    ((1, 2), 2, 20, NONE, NONE),
    ((1, 2), None, 20, (3, 5), (3, 5)),
    ((20, 40), 11, 20, (10, 11), (10, 11)),
    ((20, 40), 5, 20, (10, 11), (5, 11)),
    ((12, 22), 4, 100, (5, 8), (5, 8)),
]


@pytest.mark.parametrize(("before", "goal", "percent", "scale", "after"), REV_UP)
def test_update_spa_for_rev_up(
    before: Scale, goal: int | None, percent: int | None, scale: Scale, after: Scale
) -> None:
    found = update_spa_for_rev_up(bounded(*before), rev("r", percent, goal, scale))
    assert (found.stage_min, found.stage_max) == after


REV_DOWN = [
    (NONE, True, "", None, None, NONE, NONE),
    (NONE, False, "", None, None, NONE, NONE),
    ((1, 2), False, "r", 10, 20, (100, 100), (1, 2)),
    ((20, 40), True, "r", None, 20, (21, 41), (21, 41)),
    ((12, 22), True, "r", 18, 20, (20, 30), (18, 18)),
    ((12, 22), True, "r", 18, 20, (17, 30), (17, 18)),
    ((12, 22), True, "r", 31, 20, (17, 30), (17, 30)),
    ((12, 22), True, "r", 18, None, (17, 30), (0, 1)),
    ((12, 22), True, "r", 0, 20, (17, 30), (0, 1)),
    ((12, 22), True, "r", 18, 20, (17, 0), (17, 18)),  # a maximum of 0 is none, and not a limit of 0
]


@pytest.mark.parametrize(("before", "ready", "name", "goal", "percent", "scale", "after"), REV_DOWN)
def test_update_spa_for_rev_down(
    before: Scale, ready: bool, name: str, goal: int | None, percent: int | None, scale: Scale, after: Scale
) -> None:
    found = update_spa_for_rev_down(bounded(*before), rev(name, percent, goal, scale), ready)
    assert (found.stage_min, found.stage_max) == after


def test_create_base_stage_pod_autoscaler() -> None:
    rollout = RolloutOrchestrator(name="test-ro", namespace="test-ns")
    found = create_base_stage_pod_autoscaler(rollout, rev("test-001", scale=(20, 30)))
    assert found == StagePodAutoscaler(
        name="test-001",
        namespace="test-ns",
        owner="test-ro",
        labels={"serving.knative.dev/revision": "test-001", "serving.knative.dev/service": "test-ro"},
        stage_min=20,
        stage_max=30,
    )


# -- conditions ---------------------------------------------------------------------------------
MARKS: list[tuple[dict[str, Any], tuple[bool, bool, bool, bool]]] = [
    ({}, (False, True, False, False)),
    ({"stage_scale_up_ready": True}, (True, False, False, False)),
    ({"stage_scale_up_ready": True, "stage_scale_down_ready": None}, (True, False, False, False)),
    ({"stage_scale_up_ready": True, "stage_scale_down_ready": True}, (True, False, False, False)),
    (
        {"stage_scale_up_ready": True, "stage_scale_down_ready": True, "stage_ready": True},
        (True, False, True, False),
    ),
    (
        {"stage_scale_up_ready": True, "stage_ready": True, "last_stage_ready": True},
        (True, False, True, True),
    ),
]


@pytest.mark.parametrize(("marks", "expected"), MARKS)
def test_rollout_orchestrator_status(marks: dict[str, Any], expected: tuple[bool, ...]) -> None:
    found = RolloutOrchestrator(name="web", **marks)
    up, stage = found.stage_scale_up_ready, found.stage_ready
    assert (up is True, up is None, stage is True, found.ready is True) == expected


def test_a_condition_that_is_false_makes_the_rollout_fail() -> None:
    assert RolloutOrchestrator(name="web", stage_ready=False).ready is False


# -- the machine of steps -----------------------------------------------------------------------
@dataclass
class Noting(RolloutStep):
    """A step that notes its calls; ``ready``: what it finds."""

    name: str
    ready: bool
    calls: list[str] = field(default_factory=list)

    def execute(self, rollout: Any, up: Any, down: Any) -> None:
        self.calls.append(f"{self.name}.execute")

    def verify(self, rollout: Any, up: Any, down: Any) -> bool:
        self.calls.append(f"{self.name}.verify")
        return self.ready

    def modify_status(self, rollout: RolloutOrchestrator, ready: bool) -> RolloutOrchestrator:
        self.calls.append(f"{self.name}.modify_status({ready})")
        return rollout


MACHINE = [
    (None, (False, False), ["1.execute", "1.verify", "1.modify_status(False)"], False),
    (
        None,
        (True, False),
        [
            *("1.execute", "1.verify", "1.modify_status(True)"),
            *("2.execute", "2.verify", "2.modify_status(False)"),
        ],
        False,
    ),
    (
        None,
        (True, True),
        [
            *("1.execute", "1.verify", "1.modify_status(True)"),
            *("2.execute", "2.verify", "2.modify_status(True)"),
        ],
        True,
    ),
    (True, (False, False), ["1.execute"], True),
]


@pytest.mark.parametrize(("stage_ready", "steps", "calls", "expected"), MACHINE)
def test_a_step_begins_once_the_one_before_is_verified(
    stage_ready: bool | None, steps: tuple[bool, bool], calls: list[str], expected: bool
) -> None:
    noted = list[str]()
    made = Rollout(tuple(Noting(str(number), ready, noted) for number, ready in enumerate(steps, 1)))
    rollout = RolloutOrchestrator(name="web", stage_ready=stage_ready)
    assert made.reconcile(rollout, {}, {}) == (rollout, expected)
    assert noted == calls


STAGE = (
    TargetRevision(revision_name="old", percent=80, direction="down"),
    TargetRevision(revision_name="new", percent=20, direction="up"),
)
LAST = (
    TargetRevision(revision_name="old", percent=None, direction="down"),
    TargetRevision(revision_name="new", percent=100, direction="up"),
)
GOAL = (TargetRevision(revision_name="new", percent=100),)
ALL = {"stage_scale_up_ready": True, "stage_scale_down_ready": True, "stage_ready": True}
CONCLUDED: list[tuple[str, Any, dict[str, Any], tuple[Any, ...], Any]] = [
    ("not last", STAGE, {}, (True, None, None), STAGE),
    ("last", LAST, {}, (True, True, True), LAST[1:]),
    ("launches", STAGE, {**ALL, "stage_revision_status": STAGE}, (None, None, None), STAGE),
    ("over", LAST, {**ALL, "stage_revision_status": LAST[1:]}, (True, True, True), LAST[1:]),
    (
        "again",
        LAST,
        {**ALL, "last_stage_ready": True, "stage_revision_status": LAST[1:]},
        (True, True, True),
        LAST[1:],
    ),
]


@pytest.mark.parametrize(
    ("name", "stage", "marks", "expected", "status"), CONCLUDED, ids=[row[0] for row in CONCLUDED]
)
def test_what_follows_from_a_strategy_that_is_ready(
    name: str, stage: Any, marks: dict[str, Any], expected: tuple[Any, ...], status: Any
) -> None:
    rollout = RolloutOrchestrator(name="web", target_revisions=GOAL, stage_target_revisions=stage, **marks)
    found = concluded(rollout)
    assert (found.stage_ready, found.last_stage_ready, found.ready) == expected
    assert found.stage_revision_status == status


# -- both steps over a target that reports what it is told ----------------------------------------
@dataclass
class Bounds:
    """A target (``ScaleTarget``) that keeps bounds; scales are what the test says."""

    kept: dict[str, StagePodAutoscaler] = field(default_factory=dict)

    def autoscaler(self, revision: str) -> StagePodAutoscaler | None:
        return self.kept.get(revision)

    def scale(self, wanted: StagePodAutoscaler) -> None:
        self.kept[wanted.name] = wanted

    def report(self, revision: str, count: int, terminating: int = 0) -> None:
        self.kept[revision] = replace(
            self.kept[revision], desired=count, actual=count, terminating=terminating
        )

    def bounds(self) -> dict[str, Scale]:
        return {name: (each.stage_min, each.stage_max) for name, each in self.kept.items()}


UPS = {"new": rev("new", 20, 2, (10, 10))}
DOWNS = {"old": rev("old", 80, 8, (10, 10))}
BEGUN = RolloutOrchestrator(name="web", initial_revisions=(rev("old", 100),))


def test_availability_leaves_the_old_bounds_until_the_newcomer_is_ready() -> None:
    target = Bounds()
    strategy = new_rollout_strategy(target)["availability"]
    found, ready = strategy.reconcile(BEGUN, UPS, DOWNS)
    assert (ready, found.stage_scale_up_ready, found.ready) == (False, None, None)
    assert target.bounds() == {"new": (2, 10), "old": (10, 10)}
    target.report("new", 2)
    target.report("old", 10)
    found, ready = strategy.reconcile(BEGUN, UPS, DOWNS)
    assert (ready, found.stage_scale_up_ready, found.stage_scale_down_ready) == (False, True, None)
    assert target.bounds() == {"new": (2, 10), "old": (8, 8)}
    target.report("old", 8, terminating=1)
    assert not strategy.reconcile(BEGUN, UPS, DOWNS)[1]
    target.report("old", 8)
    found, ready = strategy.reconcile(BEGUN, UPS, DOWNS)
    assert (ready, found.stage_scale_down_ready) == (True, True)


def test_resourceutil_gives_the_newcomer_nothing_before_old_pods_are_gone() -> None:
    target = Bounds()
    strategy = new_rollout_strategy(target)["resourceutil"]
    assert not strategy.reconcile(BEGUN, UPS, DOWNS)[1]
    assert target.bounds() == {"new": (0, 0), "old": (8, 8)}
    target.report("old", 10)
    assert not strategy.reconcile(BEGUN, UPS, DOWNS)[1]
    assert target.bounds()["new"] == (0, 0)
    target.report("old", 8)
    assert not strategy.reconcile(BEGUN, UPS, DOWNS)[1]
    assert target.bounds()["new"] == (2, 10)
    target.report("new", 2)
    assert strategy.reconcile(BEGUN, UPS, DOWNS)[1]


def test_a_rollout_in_one_jump_drains_where_it_began() -> None:
    target = Bounds()
    for _ in range(2):
        new_rollout_strategy(target)["availability"].reconcile(BEGUN, {"new": rev("new", 100)}, {})
        target.report("new", 1)
    assert target.bounds()["old"] == (0, 1)
