"""Pods and services of a job, as the plan gets to see them, and what people are told of a pod in trouble."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.jobs.facts import ReplicaType, Slot
from farmd.kubernetes.jobs.facts import members_of, services_of
from farmd.kubernetes.jobs.kindfile import kinds
from farmd.kubernetes.jobs.pods import troubles
from farmd.kubernetes.jobs.resource import Resource, SchedulingPolicy
from farmd.kubernetes.objects import KubePod, KubeService
from tests.unit.jobs.kubernetes import Recorder, TestKind, controller, job, meta, pod
from tests.unit.jobs.worlds import plan, spec


def resource(*types: ReplicaType) -> Resource:
    found = spec(*types, success_index=0)
    return Resource(
        kind=kinds()["farmjobs"],
        metadata=job().metadata,
        job=found,
        templates={},
        scheduling=SchedulingPolicy(),
    )


WORKERS = ReplicaType(name="Worker", replicas=2)


def test_pods_are_members_of_the_slots_that_their_labels_name() -> None:
    pods = [pod("a", index="1"), pod("b", index="0"), pod("c", "ps"), pod("d", index="4")]

    members, strays = members_of(controller(TestKind(), Recorder()), resource(WORKERS), pods)

    assert {each.id: str(each.slot) for each in members} == {
        "uid-a": "Worker/1",
        "uid-b": "Worker/0",
        "uid-c": "ps/0",
        "uid-d": "Worker/4",
    }
    assert strays == ()


@pytest.mark.parametrize("labels", [{"replica-index": "x"}, {"replica-index": "9999999"}])
def test_a_pod_whose_slot_nobody_can_tell_is_no_member(labels: dict[str, str]) -> None:
    members, strays = members_of(
        controller(TestKind(), Recorder()), resource(WORKERS), [pod("a", labels=labels), pod("b")]
    )

    assert [each.id for each in members] == ["uid-b"]
    assert [each.id for each in strays] == ["uid-a"]


def test_a_pod_of_a_type_or_index_that_the_job_has_no_more_goes() -> None:
    pods = [pod("a", index="-1"), pod("b", "ps"), pod("c", index="7"), pod("d")]
    members, _ = members_of(controller(TestKind(), Recorder()), resource(WORKERS), pods)

    assert {each.id for each in plan(resource(WORKERS).job, *members).remove} == {"uid-a", "uid-b", "uid-c"}


def test_services_are_known_by_their_slot() -> None:
    own = [
        KubeService(meta("bert")),
        KubeService(meta("s", {"replica-type": "worker", "replica-index": "1"})),
    ]

    found = services_of(controller(TestKind(), Recorder()), resource(WORKERS), own)

    assert {str(key): each.metadata.name for key, each in found.items()} == {"None": "bert", "Worker/1": "s"}
    assert Slot("Worker", 1) in found


def sick(**status: Any) -> KubePod:
    return msgspec.convert({"metadata": {"name": "p"}, "status": {"phase": "Pending", **status}}, KubePod)


WAITING = {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
ENDED = {"name": "c", "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no data"}}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes",
    "lastTransitionTime": "2026-01-02T00:00:00Z",
}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"containerStatuses": [WAITING]}, "ImagePullBackOff: pod p, container c: no such image"),
        ({"containerStatuses": [ENDED]}, "Error: pod p, container c: exit code 3: no data"),
        (
            {"initContainerStatuses": [ENDED], "conditions": [UNSCHEDULABLE]},
            "Error: pod p, container c: exit",
        ),
        ({"conditions": [UNSCHEDULABLE]}, "Unschedulable: pod p: 0/3 nodes"),
        ({"containerStatuses": [{"name": "c"}], "conditions": [UNSCHEDULABLE]}, ""),
        ({"conditions": [{**UNSCHEDULABLE, "status": "True"}]}, ""),
        ({"phase": "Failed", "containerStatuses": [ENDED]}, ""),
        ({}, ""),
    ],
)
def test_people_are_told_what_keeps_a_pod_from_its_work(status: dict[str, Any], told: str) -> None:
    found = "; ".join(f"{each.reason}: {each.message}" for each in troubles(sick(**status)))

    assert found.startswith(told)
    assert bool(found) == bool(told)
