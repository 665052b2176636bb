"""A template that is changed under running members: what tells so, and what the plan does about it."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.jobs.facts import KUBERNETES, ReplicaType
from farmd.kubernetes.jobs import resource
from farmd.kubernetes.jobs.bodies import altered, digest
from farmd.kubernetes.jobs.kindfile import kinds
from farmd.kubernetes.jobs.names import TEMPLATE_ANNOTATION
from farmd.kubernetes.jobs.resource import Resource
from farmd.kubernetes.objects import KubePod, PodStatus
from tests.unit.jobs.kubernetes import Recorder, TestKind, controller, pod
from tests.unit.jobs.worlds import member, plan, spec, workers

TEMPLATE = {"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "main", "image": "bert:1"}]}}


def made(template: dict[str, Any]) -> Resource:
    raw = {
        "metadata": {"name": "bert", "namespace": "default", "uid": "123"},
        "spec": {"replicaSpecs": {"Worker": {"replicas": 2, "template": template}}},
    }
    return resource.read(kinds()["farmjobs"], raw)


def worker(phase: str, template: str, **fields: Any) -> KubePod:
    annotations = {TEMPLATE_ANNOTATION: template} if template else {}
    own = pod("bert-worker-0", annotations=annotations, **fields)
    return KubePod(metadata=own.metadata, status=PodStatus(phase=phase))


@pytest.mark.parametrize(
    ("phase", "template", "fields", "found"),
    [
        ("Running", "another", {}, ("Worker",)),
        ("Pending", "another", {}, ("Worker",)),
        ("Running", "", {}, ()),  # of a version that did not say
        ("Failed", "another", {}, ()),
        ("Succeeded", "another", {}, ()),
        ("Running", "another", {"deletion_timestamp": "2026-01-01T00:00:00Z"}, ()),
        ("Running", "its own", {}, ()),
    ],
)
def test_members_that_run_tell_of_which_template_they_are(
    phase: str, template: str, fields: dict[str, Any], found: tuple[str, ...]
) -> None:
    of = made(TEMPLATE)
    own = digest(of, "Worker") if template == "its own" else template
    engine = controller(TestKind(), Recorder())
    assert altered(engine, of, [worker(phase, own, **fields)]) == found


def test_the_same_template_in_another_order_is_the_same() -> None:
    turned = {"spec": TEMPLATE["spec"], "metadata": TEMPLATE["metadata"]}
    assert digest(made(TEMPLATE), "Worker") == digest(made(turned), "Worker")
    assert digest(made(TEMPLATE), "Worker") != digest(made({"spec": TEMPLATE["spec"]}), "Worker")


def test_a_type_whose_template_was_changed_gets_no_members_and_loses_none() -> None:
    job = spec(workers(3), ReplicaType(name="ps", replicas=1))
    found = plan(job, member(0), traits=KUBERNETES, altered=("worker",))
    assert [str(slot) for slot in found.create] == ["ps/0"]
    assert found.remove == ()
    assert found.blocked is not None
    assert (found.blocked.code, "the template of worker was changed" in found.blocked.text) == (
        "template_changed",
        True,
    )
