"""Conditions, bodies, versions and bounds of progressive rollouts, each by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.knative import bounds, writes
from farmd.kubernetes.knative.bounds import (
    AUTOSCALER,
    LAST_STAGE_READY,
    NOT_READY,
    ORCHESTRATOR,
    READY,
    SCALE_READY,
    STAGE_DOWN_READY,
    STAGE_READY,
    STAGE_UP_READY,
    ConditionText,
    known,
    marked,
)
from farmd.kubernetes.knative.facts import Bounds, RevisionBounds, Snapshot, StageBounds, Turn
from farmd.kubernetes.knative.ground import Ground, bounds_on_revisions
from farmd.kubernetes.knative.objects import CLASS, HPA, MANAGER, WRITER, OrchestratorSpec
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.objects import ManagedFields
from farmd.runtime.clock import SystemClock
from store.errors import InputInvalid
from tests.knative_worlds import (
    autoscaler,
    configuration,
    named,
    orchestrator,
    owned,
    revision,
    route,
    service,
    target,
)

UP, DOWN, STAGE, LAST = STAGE_UP_READY, STAGE_DOWN_READY, STAGE_READY, LAST_STAGE_READY
YES, ON = ConditionText(True), ConditionText(None, "StageRevisionStart")


@pytest.mark.parametrize(
    ("marks", "up", "stage", "ready"),
    [
        ([], None, None, None),
        ([(UP, ON)], None, None, None),
        ([(UP, YES)], True, None, None),
        ([(UP, YES), (DOWN, ON)], True, None, None),
        ([(UP, YES), (DOWN, YES)], True, None, None),
        ([(UP, YES), (DOWN, YES), (STAGE, YES)], True, True, None),
        ([(UP, YES), (DOWN, YES), (STAGE, ON)], True, None, None),
        ([(UP, YES), (DOWN, YES), (STAGE, YES), (LAST, YES)], True, True, True),
        ([(UP, YES), (DOWN, YES), (STAGE, YES), (LAST, ON)], True, True, None),
    ],
)
def test_rollout_orchestrator_status(
    marks: Any, up: bool | None, stage: bool | None, ready: bool | None
) -> None:
    found = marked((), {}, ORCHESTRATOR, 1.0)
    for name, mark in marks:
        found = marked(found, {name: mark}, ORCHESTRATOR, 1.0)
    assert (known(found, UP), known(found, STAGE), known(found, READY)) == (up, stage, ready)
    assert [each.type for each in found] == sorted(each.type for each in found)
    assert all(each.severity == ("Info" if each.type in (UP, DOWN) else "") for each in found)


def test_a_stage_pod_autoscaler_is_never_failed() -> None:
    assert known(marked((), {SCALE_READY: ConditionText(True)}, AUTOSCALER, 1.0), READY) is True
    unknown = marked((), {SCALE_READY: ConditionText(None, NOT_READY)}, AUTOSCALER, 1.0)
    assert known(unknown, READY) is None
    assert {each.reason for each in unknown} == {NOT_READY}


def test_a_condition_that_stays_keeps_the_time_of_its_change() -> None:
    before = marked((), {STAGE: YES}, ORCHESTRATOR, 1.0)
    assert marked(before, {STAGE: YES}, ORCHESTRATOR, 99.0) == before
    failed = marked(
        before, {LAST: ConditionText(False, "RevisionRolloutFailed", "it broke")}, ORCHESTRATOR, 99.0
    )
    assert known(failed, READY) is False
    assert next(each for each in failed if each.type == READY).message == "it broke"


def test_new_initial_final_target_rev() -> None:
    before, after = target("rev-001", bounds=(15, 15)), target("rev-002", bounds=(15, 15))
    for initial, targets in (((), ()), ((before,), (after,)), ((), (after,))):
        spec = OrchestratorSpec(initial_revisions=initial, target_revisions=targets)
        body = writes.new_orchestrator(Snapshot(service=service("service-001")), Turn("create", spec=spec))
        meta = body["metadata"]
        assert (meta["name"], meta["namespace"]) == ("service-001", "shop")
        assert meta["labels"] == {"serving.knative.dev/service": "service-001"}
        assert [(each["uid"], each["controller"]) for each in meta["ownerReferences"]] == [
            ("uid-service-001", True)
        ]
        assert body["spec"]["initialRevisions"] == msgspec.to_builtins(initial)
        assert body["spec"]["targetRevisions"] == msgspec.to_builtins(targets)
        assert body["spec"]["stageTargetRevisions"] == ()
        assert body["spec"]["targetFinishTime"] is None


def test_create_base_stage_pod_autoscaler() -> None:
    knative = Snapshot(service=service(), orchestrator=orchestrator())
    body = writes.new_stage_autoscaler(knative, StageBounds("test-001", Bounds(20, 30), Bounds(20, 30)))
    assert body["spec"] == {"stageMinScale": 20, "stageMaxScale": 30}
    assert body["metadata"]["annotations"] == {"farmd.io/final": "20/30"}
    assert body["metadata"]["labels"] == {
        "serving.knative.dev/revision": "test-001",
        "serving.knative.dev/service": "web",
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("RolloutOrchestrator", True)


def test_an_apply_of_bounds_leaves_out_what_was_absent() -> None:
    assert writes.bounds_apply(RevisionBounds("web-00001", Bounds(4))) == {
        "metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "4"}}
    }


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("1.20.3", False),
        ("v1.20", False),
        ("1.21.0", True),
        ("v1.22.1", True),
        ("devel", True),
        ("2.0", True),
    ],
)
def test_bounds_are_written_where_that_version_restarts_no_pod(version: str, found: bool) -> None:
    assert bounds_on_revisions(version) is found


@pytest.mark.parametrize("version", ["", "nightly"])
def test_without_a_version_nothing_is_touched(version: str) -> None:
    with pytest.raises(InputInvalid) as refused:
        bounds_on_revisions(version)
    assert refused.value.message == (
        "services.serving.knative.dev: label app.kubernetes.io/version: "
        f"found '{version}', expected a version such as 1.21.0"
    )


class Scripted:
    """A transport that answers from a table; what is not in it is not there."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    async def send(self, request: Any, _timeout: float = 0.0) -> bytes:
        """In place of the transport's."""
        last = request.path.rpartition("/")[2]
        if last not in self.answers:
            raise NotFound(f"{request}: 404", status=404, reason="NotFound")
        return msgspec.json.encode(self.answers[last])


async def test_without_knative_the_kind_is_idle_until_its_definitions_are_there() -> None:
    transport = Scripted()
    ground = Ground(transport, "knative-serving", SystemClock())  # type: ignore[arg-type]
    await ground.look()
    assert not ground.found.is_set()
    label = {"app.kubernetes.io/version": "1.20.1"}
    transport.answers["services.serving.knative.dev"] = {"metadata": {"labels": label}}
    transport.answers["config-rolloutorchestrator"] = {
        "metadata": {},
        "data": {"over-consumption-ratio": "15"},
    }
    await ground.look()
    assert ground.found.is_set()
    assert (ground.problem, ground.bounds_on_revisions, ground.settings.ratio) == ("", False, 15)
    transport.answers["config-rolloutorchestrator"]["data"] = {"over-consumption-ratio": "none"}
    await ground.look()
    assert ground.problem.startswith("config-rolloutorchestrator: over-consumption-ratio: found 'none'")
    assert ground.settings.ratio == 15


def _rests(**more: Any) -> Snapshot:
    """A service at rest, whose record farmd wrote last at second 5."""
    record = orchestrator(
        initial=(target("web-00001", newest=True),),
        targets=(target("web-00001", newest=True),),
        stage=(target("web-00001", newest=True),),
        finished=(target("web-00001", newest=True),),
        conditions={STAGE: "True", LAST: "True", READY: "True"},
    )
    times = (("farmd", "00:00:05"), *more.pop("writers", ()))
    entries = tuple(_wrote(manager, at) for manager, at in times)
    record = replace(record, metadata=replace(record.metadata, managed_fields=entries))
    return Snapshot(
        service=service(),
        settings=Settings(),
        configuration=configuration("web-00001"),
        route=route(("web-00001", 100)),
        revisions=named(revision("web-00001", **more)),
        autoscalers=named(autoscaler("web-00001", 1)),
        orchestrator=record,
    )


def _wrote(manager: str, at: str) -> ManagedFields:
    return owned(manager, "spec", "targetRevisions", time=f"2026-01-01T{at}Z")


def test_a_record_that_another_controller_writes_is_not_fought() -> None:
    assert WRITER == "farmd"
    assert decide(_rests(writers=[("controller", "00:00:04")])).blocked is None
    plan = decide(_rests(writers=[("controller", "00:00:06")]))
    assert plan.empty
    assert plan.blocked is not None
    assert plan.blocked.text == (
        "controller writes web's RolloutOrchestrator, too: restore Knative's own images, or remove the label"
    )


def test_final_bounds_are_those_of_whoever_owns_them() -> None:
    mine = ["autoscaling.knative.dev/min-scale"]
    found = _rests(bounds=Bounds(2, 20), own=mine)
    listed = replace(found.record.spec, target_revisions=(target("web-00001", bounds=(10, 30)),))
    found = dataclasses.replace(found, orchestrator=replace(found.record, spec=listed))
    assert bounds.final(found, "web-00001") == Bounds(10, 20)
    assert MANAGER == "farmd-progressive"


MIN = "autoscaling.knative.dev/min-scale"


@pytest.mark.parametrize(
    ("editor", "least"),
    [
        pytest.param("controller", 10, id="what Knative copied from a stage is a stage's"),
        pytest.param("kubectl", 2, id="what a person wrote is final"),
    ],
)
def test_after_a_downgrade_a_stage_s_bound_is_no_final_one(editor: str, least: int) -> None:
    found = _rests(bounds=Bounds(2), own=[MIN])
    listed = replace(found.record.spec, target_revisions=(target("web-00001", bounds=(10, None)),))
    maker, owner = owned("controller", "spec"), owned(editor, "metadata", "annotations", MIN)
    scale = autoscaler("web-00001", 2)
    meta = replace(scale.metadata, annotations={MIN: "2"}, managed_fields=(maker, owner))
    found = dataclasses.replace(
        found,
        autoscalers=named(replace(scale, metadata=meta)),
        orchestrator=replace(found.record, spec=listed),
        bounds_on_revisions=False,
    )
    assert bounds.final(found, "web-00001") == Bounds(least, None)


def test_revisions_of_the_class_hpa_have_one_pod_at_least() -> None:
    found = _rests(bounds=Bounds(4, 8))
    scaled = found.revisions["web-00001"]
    annotations = {**scaled.metadata.annotations, CLASS: HPA}
    scaled = replace(scaled, metadata=replace(scaled.metadata, annotations=annotations))
    found = dataclasses.replace(found, revisions={"web-00001": scaled})
    assert bounds.wanted(found, "web-00001", bounds.DRAINED) == Bounds(1, 1)
