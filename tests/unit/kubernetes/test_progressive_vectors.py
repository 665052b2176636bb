"""The tables of Knative's progressive rollout (``pkg/reconciler/service``, ``.../resources``, ``.../kpa``).

Rows that pin a fault of the original are not here; ``test_mended`` lists them with what holds instead. Nor
are these, because Knative's own autoscaler does what they are about, and farmd has no part in it:

- TestComputeStatus: which scales an autoscaler says that it has and wants. farmd reads them;
  what it does where they are not known: ``test_progressive_crossed``.
- TestComputeActivatorNum: how many activators a revision gets.
- TestReconcile, TestScaler, TestDisableScaleToZero and the rest of ``.../kpa``, without a StagePodAutoscaler.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from farmd.kubernetes.knative import traffic
from farmd.kubernetes.knative.bounds import (
    MARKER,
    final,
    merge,
    read_bounds,
    read_int_annotation,
    read_service_bounds,
)
from farmd.kubernetes.knative.facts import Bounds, Snapshot
from farmd.kubernetes.knative.objects import MAX_SCALE, MIN_SCALE, Orchestrator, OrchestratorSpec
from farmd.kubernetes.knative.settings import Settings, load_config_from_service, new_config
from farmd.rollout.staging import TargetRevision
from store.errors import InputInvalid
from tests.knative_worlds import (
    autoscaler,
    configuration,
    entry,
    named,
    orchestrator,
    revision,
    route,
    service,
    spa,
    target,
)

ROLLOUT = "rollout.knative.dev/"
RATIO, ENABLED, TIMEOUT, STRATEGY = (
    "over-consumption-ratio",
    "progressive-rollout-enabled",
    "stage-rollout-timeout-minutes",
    "progressive-rollout-strategy",
)


# -- settings -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (None, (10, True, 2, "0", "availability")),
        ({}, (10, True, 2, "0", "availability")),
        (
            {RATIO: "15", ENABLED: "false", TIMEOUT: "4", STRATEGY: "resourceutil"},
            (15, False, 4, "0", "resourceutil"),
        ),
        ({RATIO: "15", ENABLED: "false", TIMEOUT: "4"}, (15, False, 4, "0", "availability")),
    ],
)
def test_new_config_from_config_map_func(data: dict[str, str] | None, wanted: tuple[Any, ...]) -> None:
    found = new_config(data)
    assert (found.ratio, found.enabled, found.timeout_minutes, found.duration, found.strategy) == wanted


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (RATIO, "15s", "1 to 100"),
        (RATIO, "0", "1 to 100"),
        (RATIO, "101", "1 to 100"),
        (ENABLED, "invalid-false", "true or false"),
        (TIMEOUT, "-1", "a whole number of at least 1"),
        (STRATEGY, "fast", "availability or resourceutil"),
    ],
)
def test_a_bad_value_of_the_config_map_is_told_by_its_key(key: str, value: str, expected: str) -> None:
    with pytest.raises(InputInvalid) as refused:
        new_config({key: value})
    assert refused.value.message == (
        f"config-rolloutorchestrator: {key}: found '{value}', expected {expected}"
    )


@pytest.mark.parametrize(
    ("base", "says", "wanted"),
    [
        (Settings(), {}, (10, True, 2, "availability")),
        (Settings(), {RATIO: "18", TIMEOUT: "10"}, (18, True, 10, "availability")),
        (
            Settings(),
            {RATIO: "18", ENABLED: "false", TIMEOUT: "10", STRATEGY: "resourceutil"},
            (18, False, 10, "resourceutil"),
        ),
        (
            Settings(strategy="resourceutil"),
            {RATIO: "18", ENABLED: "false", TIMEOUT: "10", STRATEGY: "availability"},
            (18, False, 10, "resourceutil"),
        ),
        (
            Settings(),
            {RATIO: "18", ENABLED: "false", TIMEOUT: "10", STRATEGY: "availability"},
            (18, False, 10, "availability"),
        ),
        (Settings(), {RATIO: "18u", TIMEOUT: "8"}, (10, True, 8, "availability")),
        (Settings(), {RATIO: "18", TIMEOUT: "8o"}, (18, True, 2, "availability")),
    ],
)
def test_load_config_from_service(base: Settings, says: dict[str, str], wanted: tuple[Any, ...]) -> None:
    template = {f"{ROLLOUT}{key}": value for key, value in says.items()}
    found, wrong = load_config_from_service(base, _service(template))
    assert (found.ratio, found.enabled, found.timeout_minutes, found.strategy) == wanted
    assert len(wrong) == sum(value in ("18u", "8o") for value in says.values())


def _service(template: dict[str, str]) -> Any:
    found = service()
    metadata = replace(found.spec.template.metadata, annotations=template)
    return replace(found, spec=replace(found.spec, template=replace(found.spec.template, metadata=metadata)))


# -- traffic ------------------------------------------------------------------------------------
STAGE = (
    target("rev-001", 80, 8, "down", newest=False, bounds=(10, 10)),
    target("rev-002", 20, 2, "up", newest=True, bounds=(10, 10)),
)
SHIFTED = [("rev-001", "", 80, False), ("", "test-name", 20, True)]
HELD = [("rev-001", "", 100, False), ("", "test-name", 0, True)]
BEFORE = (target("rev-001", 100, newest=True, bounds=(10, 10)),)


def _stage(actual: int | None, settings: Settings, *, finished: Any = BEFORE, known: bool = True) -> Snapshot:
    record = orchestrator(
        targets=(target("rev-002", 100, newest=True, bounds=(10, 10)),),
        stage=STAGE,
        finished=finished,
        strategy=settings.strategy,
    )
    return Snapshot(
        service=service("test-name"),
        settings=settings,
        orchestrator=record,
        spas=named(spa("rev-002")) if known else {},
        autoscalers=named(autoscaler("rev-001", 10), autoscaler("rev-002", actual)),
    )


def _transformed_service(knative: Snapshot) -> tuple[traffic.TrafficTarget, ...]:
    """The traffic of the present stage as Knative's extension writes it on a route."""
    name, found = knative.service.metadata.name, []
    for each in traffic._shares(knative):
        entry = traffic._entry(each)
        if each.latest_revision:
            configuration = each.configuration_name or name
            entry = replace(entry, revision_name="", configuration_name=configuration)
        found.append(entry)
    return tuple(found)


def _transformed(knative: Snapshot) -> list[tuple[Any, ...]]:
    return [
        (each.revision_name, each.configuration_name, each.percent, each.latest_revision)
        for each in _transformed_service(knative)
    ]


@pytest.mark.parametrize("actual", [2, 1, None])
@pytest.mark.parametrize("finished", [BEFORE, ()])
@pytest.mark.parametrize("known", [True, False])
def test_transform_service_with_a_duration_never_holds(
    actual: int | None, finished: Any, known: bool
) -> None:
    found = _stage(actual, Settings(duration=""), finished=finished, known=known)
    assert _transformed(found) == SHIFTED


def test_transform_service_asks_neither_the_route_nor_for_scales() -> None:
    found = _stage(1, Settings(duration=""))
    other = dataclasses.replace(found, route=route(("rev-009", 100), name="test-name"))
    assert _transformed(other) == SHIFTED
    unread = dataclasses.replace(found, spas={}, autoscalers={})
    assert _transformed(unread) == SHIFTED


@pytest.mark.parametrize(
    ("actual", "settings", "finished", "known", "wanted"),
    [
        (2, Settings(), BEFORE, True, SHIFTED),
        (1, Settings(), BEFORE, True, HELD),
        (None, Settings(), BEFORE, True, HELD),
        (2, Settings(), BEFORE, False, HELD),
        (1, Settings(strategy="resourceutil"), BEFORE, True, SHIFTED),
        (1, Settings(duration="30s"), BEFORE, True, SHIFTED),
        (1, Settings(), (), True, SHIFTED),
    ],
)
def test_traffic_waits_for_the_pods_of_its_stage(
    actual: int | None, settings: Settings, finished: Any, known: bool, wanted: Any
) -> None:
    assert _transformed(_stage(actual, settings, finished=finished, known=known)) == wanted


# -- bounds and records -------------------------------------------------------------------------
def test_read_int_annotation() -> None:
    bounds = {MIN_SCALE: "10", MAX_SCALE: "12"}
    assert [read_int_annotation(bounds, key) for key in (MIN_SCALE, MAX_SCALE)] == [10, 12]
    for key in (MIN_SCALE, MAX_SCALE):
        assert read_int_annotation({**bounds, key: "12-invalid"}, key) is None
        assert read_int_annotation({each: text for each, text in bounds.items() if each != key}, key) is None


def test_create_rev_records_from_rev_list() -> None:
    both = named(revision("rev-1", Bounds(11, 15)), revision("rev-2", Bounds(10, 12)))
    found = Snapshot(service=service(), revisions=both)
    assert {name: final(found, name) for name in both} == {"rev-1": (11, 15), "rev-2": (10, 12)}


def test_read_int_service_annotation() -> None:
    assert read_service_bounds(service(bounds=Bounds(10, 12))) == Bounds(10, 12)
    assert read_service_bounds(service(bounds=Bounds(10))) == Bounds(10, None)
    assert read_service_bounds(_service({MIN_SCALE: "12-invalid", MAX_SCALE: "12-invalid"})) == Bounds()


@pytest.mark.parametrize("bounds", [Bounds(10, 15), Bounds(), Bounds(15), Bounds(None, 15)])
def test_read_int_revision_record(bounds: Bounds) -> None:
    assert read_bounds(revision("rev", bounds).metadata.annotations) == bounds
    found = traffic.target_revision(
        Snapshot(service=service(), revisions=named(revision("rev", bounds))), "", entry("rev", 1)
    )
    assert (found.min_scale, found.max_scale) == bounds


@pytest.mark.parametrize(
    ("config", "own", "stage", "wanted"),
    [
        ((2, 5), (None, None), (None, None), (2, 5)),
        ((2, 5), (1, 3), (None, None), (1, 3)),
        ((2, 5), (5, 6), (None, None), (5, 6)),
        ((2, 5), (5, None), (None, None), (5, 5)),
        ((2, 5), (None, 4), (None, None), (2, 4)),
        ((0, 0), (None, 4), (None, None), (0, 4)),
        ((2, 5), (2, 5), (1, 2), (1, 2)),
        ((2, 5), (2, 5), (3, 6), (2, 5)),
        ((2, 5), (2, 5), (3, 4), (2, 4)),
        ((2, 5), (2, 5), (1, 6), (1, 5)),
    ],
)
def test_get_scale_bounds(config: Any, own: Any, stage: Any, wanted: Any) -> None:
    final = Bounds(*(base if each is None else each for base, each in zip(config, own, strict=True)))
    assert merge(final, Bounds(*stage)) == wanted


# -- initial and final targets -------------------------------------------------------------------
def _at(newest: str, records: dict[str, Bounds], shares: Any, template: Bounds, asked: Any = ()) -> Any:
    found = Snapshot(
        service=service(bounds=template),
        route=route(*shares) if shares else None,
        revisions=named(*(revision(name, bounds) for name, bounds in records.items())),
    )
    return (
        _brief(traffic.initial_target_revisions(found, newest)),
        _brief(traffic.final_target_revisions(found, newest, asked)),
    )


def _brief(revisions: tuple[TargetRevision, ...]) -> list[tuple[Any, ...]]:
    return [
        (each.revision_name[-5:], each.latest_revision, each.percent, each.min_scale, each.max_scale)
        for each in revisions
    ]


R1, R2, R3 = "web-00001", "web-00002", "web-00003"
LATEST = entry("", 100, newest=True)


def test_get_initial_final_target_revision() -> None:
    first, second = {R1: Bounds(5, 10)}, {R1: Bounds(5, 10), R2: Bounds(8, 10)}
    template = Bounds(8, 10)
    assert _at(R2, {}, (), Bounds(11, 12)) == ([], [("00002", True, 100, 11, 12)])
    old = {R1: Bounds(5, 10), R2: Bounds(5, 10)}
    assert _at(R2, old, (), Bounds(10)) == ([], [("00002", True, 100, 5, 10)])
    assert _at(R2, first, ((R1, 100),), template) == (
        [("00001", False, 100, 5, 10)],
        [("00002", True, 100, 8, 10)],
    )
    both = ((R1, 40), (R2, 60))
    assert _at(R2, second, both, template) == (
        [("00001", False, 40, 5, 10), ("00002", True, 60, 8, 10)],
        [("00002", True, 100, 8, 10)],
    )
    assert _at(R3, second, both, template) == (
        [("00001", False, 40, 5, 10), ("00002", False, 60, 8, 10)],
        [("00003", True, 100, 8, 10)],
    )
    asked = (entry(R2, 30), entry("", 70, newest=True))
    assert _at(R3, second, ((R2, 100),), template, asked) == (
        [("00002", False, 100, 8, 10)],
        [("00002", False, 30, 8, 10), ("00003", True, 70, 8, 10)],
    )
    assert _at(R3, {R2: Bounds(8, 10)}, ((R2, 100),), template, (LATEST,)) == (
        [("00002", False, 100, 8, 10)],
        [("00003", True, 100, 8, 10)],
    )


def test_a_share_of_none_for_the_latest_revision_goes_first() -> None:
    _, found = _at(R3, {R2: Bounds()}, (), Bounds(), (entry(R2, 100), entry("", 0, newest=True)))
    assert [(name, percent) for name, _, percent, *_ in found] == [("00003", 0), ("00002", 100)]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            [("3", 10, True), ("1", 70, False), ("2", 20, False)],
            [("1", 70, False), ("2", 20, False), ("3", 10, True)],
        ),
        (
            [("3", 10, True), ("1", 40, False), ("1", 30, False), ("3", 10, False), ("2", 10, False)],
            [("1", 70, False), ("2", 10, False), ("3", 20, True)],
        ),
        ([("1", 50, False), ("2", 25, False), ("2", 25, True)], [("1", 50, False), ("2", 50, True)]),
        ([], []),
    ],
)
def test_consolidate_traffic(given: Any, wanted: Any) -> None:
    found = traffic.consolidate_traffic(target(name, share, newest=newest) for name, share, newest in given)
    assert [(each.revision_name, each.percent, each.latest_revision) for each in found] == wanted


def _updated(
    record: Orchestrator, goal: TargetRevision | None, *, shares: Any = (), pods: int = 0
) -> OrchestratorSpec:
    found = Snapshot(
        service=service(),
        orchestrator=record,
        configuration=configuration(R3),
        route=route(*shares) if shares else None,
        revisions=named(revision(R2), revision(R3)),
        autoscalers=named(autoscaler(R3, pods)),
    )
    return traffic.update_initial_final_target_rev(found, (goal,) if goal is not None else ())


def test_update_initial_final_target_rev() -> None:
    old, new, at = target(R3), target("web-00004"), ((R2, 60), (R3, 40))
    finished = (target(R2, 20), target(R3, 80))
    initial = (target(R2, 100, newest=True),)
    assert _updated(orchestrator(), None) == orchestrator().spec
    kept = orchestrator(targets=(old,), stage=(old,))
    assert _updated(kept, old) == kept.spec
    fresh = _updated(orchestrator(targets=(old,), stage=(old,)), new)
    assert fresh == OrchestratorSpec(target_revisions=(new,), rollout_strategy="availability")
    assert _updated(orchestrator(targets=(old,), initial=initial), new).initial_revisions == ()
    done = orchestrator(targets=(old,), finished=finished, conditions={"StageReady": "True"})
    assert _updated(done, new).initial_revisions == finished
    under_way = {"StageReady": "Unknown"}
    lost = orchestrator(targets=(old,), finished=finished, conditions=under_way)
    assert _updated(lost, new).initial_revisions == ()
    before = (target(R2, 80), target(R3, 20))
    stage = (target(R2, 60, direction="down"), target(R3, 40, direction="up"))
    moving = orchestrator(targets=(old,), finished=before, stage=stage, conditions=under_way)
    assert _updated(moving, new, shares=at).initial_revisions == before
    assert _updated(moving, new, shares=at, pods=2).initial_revisions == stage
    begun = orchestrator(targets=(old,), initial=initial)
    assert _updated(begun, new, shares=at).initial_revisions == initial


# -- mended -------------------------------------------------------------------------------------
def test_mended() -> None:
    """The original ignores a stage's most where the revision has none, and reads a most of 0 as none at all;
    its marker 0/0 would be unlimited; an entry for a tag alone becomes 100 %; traffic of a first stage goes
    to a revision without pods where a service was opted in together with it. It holds no jump, either.
    """
    assert merge(Bounds(), Bounds(None, 6)) == (None, 6)
    assert merge(Bounds(2, 0), Bounds(1, 3)) == (1, 3)
    assert merge(Bounds(2, 5), MARKER) == (0, 1)
    asked = (entry(R1, None, tag="old"), LATEST)
    assert [each[0] for each in _at(R2, {}, (), Bounds(), asked)[1]] == ["00002"]
    first = _stage(1, Settings(), finished=())
    record = first.record
    first = Snapshot(
        service=first.service,
        orchestrator=replace(record, spec=replace(record.spec, initial_revisions=BEFORE)),
        spas=first.spas,
        autoscalers=first.autoscalers,
    )
    assert _transformed(first) == HELD
    assert _transformed(_stage(1, Settings(enabled=False))) == HELD
