"""What a scheduler of gangs is told of a job, in each flavour."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.jobs.facts import Slot
from farmd.kubernetes.jobs.controller import budget_body
from farmd.kubernetes.jobs.podgroups import (
    differs,
    flavours,
    group_body,
    mark,
    min_resources,
    quantity,
    state,
    written,
)
from farmd.kubernetes.jobs.resource import Resource, read
from store.errors import InputInvalid
from tests.unit.jobs.test_job_resources import controller, kind

PRIORITIES = {"high": 1000}


def template(priority: str = "", **resources: dict[str, Any]) -> dict[str, Any]:
    containers = [{"name": "pytorch", "resources": resources}]
    return {"spec": {"priorityClassName": priority, "containers": containers}}


def job(master: dict[str, Any], worker: dict[str, Any], **policy: Any) -> Resource:
    specs = {"Master": {"template": master}, "Worker": {"replicas": 4, "template": worker}}
    raw = {
        "metadata": {"name": "bert", "namespace": "ml", "uid": "9", "annotations": {"team": "nlp"}},
        "spec": {"pytorchReplicaSpecs": specs, "runPolicy": {"schedulingPolicy": policy}},
    }
    return read(kind("pytorchjobs"), raw, gangs=True)


MASTER, WORKER = {"requests": {"cpu": 1}}, {"requests": {"cpu": "2", "gpu": 1}}


def example(**policy: Any) -> Resource:
    return job(template("high", **MASTER), template(**WORKER), **policy)


def body(flavour: str, of: Resource) -> dict[str, Any]:
    return group_body(flavours()[flavour], controller(of.kind), of, lambda name: PRIORITIES.get(name, 0))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (3, {"cpu": "5", "gpu": "2"}),
        (5, {"cpu": "9", "gpu": "4"}),
        (0, {}),
        (9, {"cpu": "9", "gpu": "4"}),
    ],
)
def test_members_of_the_highest_priority_count_first(members: int, expected: dict[str, str]) -> None:
    assert min_resources(example(), members, PRIORITIES.__getitem__) == expected


def test_equal_priorities_count_in_the_order_of_types() -> None:
    of = job(template(**MASTER), template(**WORKER))

    assert min_resources(of, 3, lambda name: 0) == {"cpu": "5", "gpu": "2"}


def test_limits_count_only_where_there_are_no_requests() -> None:  # D27
    limits = {"cpu": 2}
    alone = job(template(limits=limits), template(limits=limits))
    beside = job(template(limits=limits, requests={"memory": "1Gi"}), template(requests={}, limits=limits))

    assert min_resources(alone, 1, lambda name: 0) == {"cpu": "2"}
    assert min_resources(beside, 5, lambda name: 0) == {"memory": "1073741824"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", "2"), (2, "2"), ("500m", "500m"), ("0.5", "500m"), ("64Mi", "67108864"), ("1e3", "1000")]
    + [("1E", str(10**18)), ("1k", "1000"), ("100n", "1m"), (0.25, "250m")],
)
def test_quantities_are_read_as_the_api_writes_them(text: str | float, expected: str) -> None:
    assert written(quantity(text)) == expected


@pytest.mark.parametrize("text", ["", "much", "1 Gi", "5kg", "1/2", "-1", "0x10"])
def test_a_quantity_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(InputInvalid, match=r"cpu: found .*, expected a quantity such as 500m or 64Mi"):
        quantity(text, "cpu")


def test_volcano_waits_until_the_group_is_in_its_queue() -> None:
    flavour = flavours()["volcano"]

    found = [
        state(flavour, {"status": {"phase": phase}})
        for phase in ("", "Pending", "Inqueue", "Running", "Unknown")
    ]
    assert found == ["waiting", "waiting", "ready", "ready", "ready"]  # D24
    assert state(flavour, None) == "absent"
    assert state(flavour, {}) == "waiting"
    assert state(flavours()["scheduler-plugins"], {}) == "ready"


def test_volcano_is_told_of_members_resources_queue_and_priority() -> None:
    made = body("volcano", example(minAvailable=3, queue="research", priorityClass="high"))

    assert made["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert made["spec"] == {
        "minMember": 3,
        "minResources": {"cpu": "5", "gpu": "2"},
        "queue": "research",
        "priorityClassName": "high",
    }
    assert made["metadata"]["annotations"] == {"team": "nlp"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "9"


def test_other_schedulers_are_told_in_their_words() -> None:
    of = example(minResources={"cpu": "64"}, scheduleTimeoutSeconds=30)

    assert body("scheduler-plugins", of)["spec"] == {
        "minMember": 5,
        "minResources": {"cpu": "64"},
        "scheduleTimeoutSeconds": 30,
    }
    assert body("native", of)["spec"] == {"schedulingPolicy": {"gang": {"minCount": 5}}}
    assert body("pdb", of)["spec"] == budget_body(controller(of.kind), of, 5)["spec"]


def pod(scheduler: str = "") -> dict[str, Any]:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"schedulerName": scheduler} if scheduler else {}}


def test_pods_bear_the_mark_of_their_gang() -> None:
    of, slot = example(), Slot("Worker", 1)
    volcano, plugins, native, budget = pod(), pod(), pod(), pod()
    for name, each in (
        ("volcano", volcano),
        ("scheduler-plugins", plugins),
        ("native", native),
        ("pdb", budget),
    ):
        assert mark(flavours()[name], of, slot, each) == ""

    assert volcano["spec"] == {"schedulerName": "volcano"}
    assert volcano["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "bert",
        "volcano.sh/task-spec": "worker",
    }
    assert plugins["metadata"]["labels"] == {"a": "b", "scheduling.x-k8s.io/pod-group": "bert"}
    assert native["spec"] == {"schedulingGroup": {"podGroupName": "bert"}}
    assert budget["spec"] == {}


@pytest.mark.parametrize(
    ("named", "told"), [("", ""), ("volcano", ""), ("other-scheduler", "other-scheduler")]
)
def test_a_foreign_scheduler_of_a_template_stays_and_is_told(named: str, told: str) -> None:
    found = pod(named)

    assert mark(flavours()["volcano"], example(), Slot("Worker", 0), found) == told
    assert found["spec"]["schedulerName"] == (named or "volcano")


def test_a_group_that_is_as_wanted_is_not_written_again() -> None:  # D25
    wanted = body("volcano", example())

    assert differs({"spec": {**wanted["spec"], "queue": "default"}}, wanted) == {}
    assert differs({"spec": {**wanted["spec"], "minMember": 2}}, wanted) == {"minMember": 5}
