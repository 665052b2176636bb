"""What people are told of a rollout's stages before they come: the paces of Knative's progressive rollout."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from farmd.kubernetes.knative import commands, sync
from farmd.kubernetes.knative import record as knative_record
from farmd.kubernetes.knative.facts import Bounds, Snapshot
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.knative.view import FoundService
from store.errors import InputInvalid
from tests.knative_model import World
from tests.knative_worlds import (
    autoscaler,
    configuration,
    orchestrator,
    revision,
    route,
    service,
    spa,
    target,
)

A, B, C = "web-00001", "web-00002", "web-00003"


def spelt(stages: tuple[knative_record.Stage, ...]) -> str:
    return "; ".join(
        "→".join(
            f"{'nil' if each.percent is None else each.percent}/{each.target_replicas}"
            for each in stage.revisions
        )
        for stage in stages
    )


def pushed(count: int, wanted: int, ratio: int, **settings: str) -> Snapshot:
    """A service of so many pods, whose next revision has other bounds."""
    old, new = Bounds(count, count), Bounds(wanted, wanted)
    return Snapshot(
        service=service(bounds=new),
        settings=Settings(ratio=ratio, **settings),
        configuration=configuration(B),
        route=route((A, 100)),
        revisions={A: revision(A, old), B: revision(B, new)},
        autoscalers={A: autoscaler(A, count), B: autoscaler(B, 1)},
    )


PACES = [
    (1, 1, 10, "nil/0→100/1", 2),
    (2, 2, 10, "50/1→50/1; nil/0→100/2", 3),
    (3, 3, 10, "66/2→34/1; 33/1→67/2; nil/0→100/3", 4),
    (4, 4, 25, "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/4", 5),
    (
        7,
        7,
        20,
        "85/6→15/1; 70/5→30/2; 56/4→44/3; 42/3→58/4; 28/2→72/5; 14/1→86/6; nil/0→100/7",
        8,
    ),
    (8, 8, 30, "75/6→25/2; 50/4→50/4; 25/2→75/6; nil/0→100/8", 10),
    (4, 6, 30, "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/6", 7),
    (5, 10, 20, "80/4→20/1; 60/3→40/2; 40/2→60/3; 20/1→80/4; nil/0→100/10", 11),
    (4, 40, 10, "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/40", 41),
    (8, 10, 100, "nil/0→100/10", 18),
]


@pytest.mark.parametrize(("count", "wanted", "ratio", "stages", "peak"), PACES)
def test_the_stages_ahead_are_those_that_a_farm_will_plan(count, wanted, ratio, stages, peak):
    knative = pushed(count, wanted, ratio)
    made = sync.sync(knative)
    assert made.spec is not None
    found = knative_record.ahead(knative, made.spec)
    assert spelt(found) == stages
    assert max(each.peak for each in found) == peak


def test_a_rollout_within_today_s_room_takes_no_more_pods_than_there_were():
    knative = pushed(10, 10, 20, strategy="resourceutil")
    knative = replace(knative, autoscalers={A: autoscaler(A, 10), B: autoscaler(B, 0)})
    made = sync.sync(knative)
    assert made.spec is not None
    assert {each.peak for each in knative_record.ahead(knative, made.spec)} == {10}


def test_a_jump_counts_the_pods_of_what_it_does_not_name():
    knative = replace(pushed(4, 4, 20), settings=Settings(enabled=False))
    made = sync.sync(knative)
    assert made.spec is not None
    assert [each.peak for each in knative_record.ahead(knative, made.spec)] == [8]


def planned(*traffic: dict[str, object], name: str = C, pushes: bool = True) -> list[str]:
    """The plan of a file for a service of four pods at rest, whose first revision is there, too."""
    world = World(random.Random(1), Settings(ratio=50), Bounds(4, 4))
    world.settle()
    world.push(Bounds(4, 4))
    world.settle()
    scales = {"autoscaling.knative.dev/min-scale": "4", "rollout.knative.dev/over-consumption-ratio": "50"}
    spec = {"template": {"metadata": {"name": name, "annotations": scales}}, "traffic": list(traffic)}
    body = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}}
    asked = commands.parse(body | {"spec": spec}, "web.yaml")
    seen = FoundService(world.snapshot())
    return commands.lines(commands.planned(seen, Settings(ratio=50), asked.service, pushes=pushes))


def test_a_plan_goes_by_the_traffic_of_its_file():
    pin, latest = {"revisionName": A, "percent": 100}, {"latestRevision": True, "percent": 100}
    back = planned(pin, pushes=False)
    assert back[0].startswith(f"ksvc/shop/web: {A} rolls out in 2 stages")
    assert planned(pin)[0].startswith(f"ksvc/shop/web: {A} rolls out in 2 stages")
    assert planned(latest) == planned()
    assert planned()[0].startswith(f"ksvc/shop/web: {C} rolls out in 2 stages")
    assert planned(latest, pushes=False) == ["ksvc/shop/web: its template is already there"]
    assert "found web-00009, expected one of" in planned(pin | {"revisionName": "web-00009"})[0]


def test_a_field_without_a_value_is_none_in_the_file_of_a_plan():
    meta = {"name": "web", "annotations": None}
    template = {"metadata": {"annotations": None, "labels": {"a": "b"}}}
    body = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": meta}
    asked = commands.parse(body | {"spec": {"template": template, "traffic": None}}, "web.yaml")
    assert asked.service.metadata.annotations == {}
    assert commands.same({"metadata": {"labels": {"a": "b"}}}, asked.template)


def test_a_plan_refuses_a_name_that_a_revision_has():
    with pytest.raises(InputInvalid) as refused:
        planned(name=A)
    assert refused.value.message == (
        f"spec.template.metadata.name: found {A}, expected a name that no revision has"
    )


def test_a_third_revision_replaces_the_second_first_and_then_the_first():
    ten = (10, 10)
    stage = (target(A, 60, 6, "down", bounds=ten), target(B, 40, 4, "up", newest=True, bounds=ten))
    record = orchestrator(
        initial=(target(A, bounds=ten),),
        targets=(target(B, bounds=ten),),
        stage=stage,
        finished=stage,
        conditions={"StageReady": "True", "LastStageReady": "Unknown"},
    )
    names = {A: 6, B: 4, C: 1}
    knative = Snapshot(
        service=service(bounds=Bounds(*ten)),
        settings=Settings(ratio=20),
        configuration=configuration(C),
        route=route((A, 60), (B, 40)),
        orchestrator=record,
        revisions={name: revision(name, Bounds(*ten)) for name in names},
        autoscalers={name: autoscaler(name, pods) for name, pods in names.items()},
        spas={name: spa(name) for name in (A, B)},
    )
    made = sync.sync(knative)
    assert made.spec is not None
    shares = [
        {each.revision_name[-1]: each.percent for each in stage.revisions}
        for stage in knative_record.ahead(knative, made.spec)
    ]
    assert shares == [
        {"1": 60, "2": 20, "3": 20},
        {"1": 60, "2": None, "3": 40},
        {"1": 40, "3": 60},
        {"1": 20, "3": 80},
        {"1": None, "3": 100},
    ]


def test_the_second_of_five_stages_is_told_as_that():
    knative = pushed(10, 10, 20)
    made = sync.sync(knative)
    assert made.spec is not None
    second = knative_record.ahead(knative, made.spec)[1].revisions
    record = orchestrator(strategy="availability")
    standing = replace(
        knative,
        orchestrator=changed(record, spec=changed(made.spec, stage_target_revisions=second)),
        autoscalers={A: autoscaler(A, 8), B: autoscaler(B, 2)},
        spas={name: spa(name) for name in (A, B)},
    )
    assert knative_record.position(standing) == (2, 5)
