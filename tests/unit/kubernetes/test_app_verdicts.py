"""How far an object in Kubernetes is, by the rules of kstatus; what its files state, and what is in order."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.apps.facts import Act, Verb
from farmd.kubernetes.apps import marks
from farmd.kubernetes.apps.facts import judge
from farmd.kubernetes.apps.marks import APPLIED, OwnerMark, mark_in
from farmd.kubernetes.apps.writes import ordered
from store.apps import TypedReference


def found(api: str, kind: str, spec: Any = None, status: Any = None, **meta: Any) -> dict[str, Any]:
    meta = {"name": "a", "generation": 2, **meta}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec or {}, "status": status or {}}


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


SEEN = {"observedGeneration": 2}
TWO = {"replicas": 2}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("a config map", found("v1", "ConfigMap"), "ready", ""),
    (
        "being deleted",
        found("v1", "ConfigMap", deletionTimestamp="x", finalizers=["f"]),
        "progressing",
        "held by f",
    ),
    (
        "an old generation",
        found("x.io/v1", "Row", status={"observedGeneration": 1}),
        "progressing",
        "last change",
    ),
    ("unseen deployment", found("apps/v1", "Deployment", TWO), "progressing", "has not seen it"),
    (
        "half updated",
        found("apps/v1", "Deployment", TWO, SEEN | {"updatedReplicas": 1}),
        "progressing",
        "1 of 2 updated",
    ),
    (
        "old pods",
        found("apps/v1", "Deployment", TWO, SEEN | {"updatedReplicas": 2, "replicas": 3}),
        "progressing",
        "1 old pods to remove",
    ),
    (
        "not available",
        found(
            "apps/v1", "Deployment", TWO, SEEN | {"updatedReplicas": 2, "replicas": 2, "availableReplicas": 1}
        ),
        "progressing",
        "1 of 2 available",
    ),
    (
        "available",
        found(
            "apps/v1", "Deployment", TWO, SEEN | {"updatedReplicas": 2, "replicas": 2, "availableReplicas": 2}
        ),
        "ready",
        "",
    ),
    (
        "over its deadline",
        found(
            "apps/v1",
            "Deployment",
            TWO,
            SEEN | condition("Progressing", "False", "ProgressDeadlineExceeded", "m"),
        ),
        "failed",
        "ProgressDeadlineExceeded: m",
    ),
    ("scaled to none", found("apps/v1", "Deployment", {"replicas": 0}, SEEN), "ready", ""),
    (
        "stateful, not ready",
        found("apps/v1", "StatefulSet", TWO, SEEN | {"readyReplicas": 1}),
        "progressing",
        "1 of 2 ready",
    ),
    (
        "stateful, old revision",
        found(
            "apps/v1",
            "StatefulSet",
            TWO,
            SEEN | {"readyReplicas": 2, "updatedReplicas": 2, "currentRevision": "a", "updateRevision": "b"},
        ),
        "progressing",
        "the last pods are updated",
    ),
    (
        "stateful, partition",
        found(
            "apps/v1",
            "StatefulSet",
            TWO | {"updateStrategy": {"rollingUpdate": {"partition": 1}}},
            SEEN | {"readyReplicas": 2, "updatedReplicas": 1, "currentRevision": "a", "updateRevision": "b"},
        ),
        "ready",
        "",
    ),
    (
        "stateful, on delete",
        found("apps/v1", "StatefulSet", TWO | {"updateStrategy": {"type": "OnDelete"}}, SEEN),
        "ready",
        "",
    ),
    (
        "daemon set",
        found("apps/v1", "DaemonSet", {}, SEEN | {"desiredNumberScheduled": 3, "updatedNumberScheduled": 3}),
        "progressing",
        "0 of 3 available",
    ),
    (
        "job under way",
        found("batch/v1", "Job", {"completions": 3}, {"succeeded": 1}),
        "progressing",
        "1 of 3 succeeded",
    ),
    ("job done", found("batch/v1", "Job", {}, condition("Complete")), "ready", ""),
    (
        "job failed",
        found("batch/v1", "Job", {}, condition("Failed", reason="BackoffLimitExceeded")),
        "failed",
        "Backoff",
    ),
    ("farm job done", found("farmd.io/v1", "FarmJob", {}, condition("Succeeded")), "ready", ""),
    ("farm job failed", found("farmd.io/v1", "FarmJob", {}, condition("Failed", message="m")), "failed", "m"),
    ("pod waits", found("v1", "Pod", {}, {"phase": "Pending"}), "progressing", "phase Pending"),
    ("pod ready", found("v1", "Pod", {}, {"phase": "Running"} | condition("Ready")), "ready", ""),
    ("pod failed", found("v1", "Pod", {}, {"phase": "Failed", "message": "m"}), "failed", "m"),
    (
        "claim that its first pod binds",
        found("v1", "PersistentVolumeClaim", {}, {"phase": "Pending"}),
        "ready",
        "",
    ),
    ("claim bound", found("v1", "PersistentVolumeClaim", {}, {"phase": "Bound"}), "ready", ""),
    (
        "claim lost",
        found("v1", "PersistentVolumeClaim", {}, {"phase": "Lost"}),
        "failed",
        "its volume is lost",
    ),
    (
        "definition",
        found("apiextensions.k8s.io/v1", "CustomResourceDefinition", {}, condition("Established")),
        "ready",
        "",
    ),
    (
        "definition refused",
        found(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            {},
            condition("NamesAccepted", "False", "Conflict"),
        ),
        "failed",
        "Conflict",
    ),
    ("service", found("v1", "Service", {"type": "ClusterIP"}), "ready", ""),
    (
        "load balancer",
        found("v1", "Service", {"type": "LoadBalancer"}),
        "progressing",
        "no load balancer address",
    ),
    ("namespace", found("v1", "Namespace", {}, {"phase": "Active"}), "ready", ""),
    (
        "custom, not ready",
        found("x.io/v1", "Row", {}, condition("Ready", "False", "Waits", "m")),
        "progressing",
        "Waits: m",
    ),
    ("custom, ready", found("x.io/v1", "Row", {}, condition("Ready")), "ready", ""),
    (
        "custom, stalled",
        found(
            "x.io/v1",
            "Row",
            {},
            {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Stalled", "status": "True"}]},
        ),
        "failed",
        "Ready is not True",
    ),
    ("custom, a word as status", found("x.io/v1", "Row", {}, "fine"), "ready", ""),
    ("custom, conditions by name", found("x.io/v1", "Row", {}, {"conditions": {"Ready": "no"}}), "ready", ""),
    ("custom, words as conditions", found("x.io/v1", "Row", {}, {"conditions": ["Ready"]}), "ready", ""),
    ("custom, generation as text", found("x.io/v1", "Row", {}, {"observedGeneration": "1"}), "ready", ""),
    (
        "custom, a message that is no text",
        found(
            "x.io/v1", "Row", {}, {"conditions": [{"type": "Ready", "status": False, "message": {"a": 1}}]}
        ),
        "progressing",
        "Ready is not True",
    ),
]


@pytest.mark.parametrize(("name", "there", "state", "why"), CASES, ids=[case[0] for case in CASES])
def test_the_verdict_on_an_object_is_that_of_kstatus(
    name: str, there: dict[str, Any], state: str, why: str
) -> None:
    del name
    verdict = judge(there)
    assert verdict.state == state
    assert why in verdict.why


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("c0ffee/shop/7", OwnerMark("c0ffee", "shop", 7)),
        ("c0ffee/shop/", None),
        ("c0ffee/shop/-1", None),
        (f"c0ffee/shop/{'9' * 18}", OwnerMark("c0ffee", "shop", int("9" * 18))),
        (f"c0ffee/shop/{'9' * 19}", None),
        (f"c0ffee/shop/{'9' * 5000}", None),
    ],
    ids=["a number", "none", "below 0", "the highest", "too high", "of 5,000 digits"],
)
def test_a_number_that_no_target_can_have_is_no_mark(text: str, mark: OwnerMark | None) -> None:
    assert mark_in({APPLIED: text}) == mark


@pytest.mark.parametrize(
    ("document", "there", "paths"),
    [
        ({"data": {"a": "1"}}, {"data": {"a": "1", "b": "2"}}, []),
        ({"data": {"a": "1"}}, {"data": {"a": "2"}}, ["data.a"]),
        ({"data": {}}, {}, []),
        ({"spec": {"list": [{"a": 1}]}}, {"spec": {"list": [{"a": 1, "b": 2}]}}, []),
        ({"spec": {"list": [{"a": 1}]}}, {"spec": {"list": [{"a": 1}, {"a": 2}]}}, ["spec.list"]),
        ({"spec": {"list": [{"a": 1}]}}, {"spec": {"list": [{"a": 3}]}}, ["spec.list[0].a"]),
        ({"spec": {"a": None}}, {"spec": {}}, []),
    ],
)
def test_only_what_a_document_states_is_compared(document: Any, there: Any, paths: list[str]) -> None:
    assert marks.differing(document, there) == paths


def test_an_ignored_field_is_left_out_of_the_comparison_and_taken_from_the_object() -> None:
    document = {"spec": {"replicas": 1, "a": 2}}
    live = {"spec": {"replicas": 7, "a": 3}}
    assert marks.without(document, ["spec.replicas"]) == {"spec": {"a": 2}}
    assert marks.with_live(document, live, ["spec.replicas"]) == {"spec": {"replicas": 7, "a": 2}}
    assert marks.with_live(document, {"spec": {}}, ["spec.replicas"]) == {"spec": {"a": 2}}
    assert document == {"spec": {"replicas": 1, "a": 2}}


def test_what_others_live_in_comes_first_and_goes_last() -> None:
    kinds = ["Row", "Deployment", "Namespace", "ConfigMap", "CustomResourceDefinition"]

    def acts(verb: Verb) -> list[Act]:
        return [Act(verb, TypedReference(api_version="v1", kind=kind, name="a")) for kind in kinds]

    order = ["Namespace", "CustomResourceDefinition", "ConfigMap", "Deployment", "Row"]
    assert [group[0].ref.kind for group in ordered(acts("create"))] == order
    assert [group[0].ref.kind for group in ordered(acts("remove"))] == order[::-1]
