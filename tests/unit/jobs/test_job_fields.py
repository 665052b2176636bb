"""Every field of FarmJob, TFJob and PyTorchJob is obeyed or refused by its name, and stands in the docs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from farmd.jobs.facts import Slot
from farmd.jobs.plan import over_limit, spared
from farmd.kubernetes.jobs import resource, training
from farmd.kubernetes.jobs.bodies import pod_body, service_body
from farmd.kubernetes.jobs.kindfile import kinds
from farmd.kubernetes.jobs.podgroups import flavours, group_body
from farmd.kubernetes.jobs.resource import Resource, read
from store.errors import InputInvalid
from store.jobs import Success
from tests.unit.jobs.test_job_resources import FARM, PYTORCH, TF, controller, env

DOCS = Path(__file__).parents[3] / "docs" / "kubernetes-jobs.md"
TEXTS = {"farmjobs": FARM, "tfjobs": TF, "pytorchjobs": PYTORCH}
W7 = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: w7, namespace: ml, uid: "7e"}
spec:
  elasticPolicy: {rdzvBackend: c10d, minReplicas: 1, maxReplicas: 2, maxRestarts: 10}
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: "example/echo:1", command: [torchrun, e.py]}]}}
"""


def of(plural: str, path: str, value: Any) -> Resource:
    """A job with one field changed."""
    raw = yaml.safe_load(TEXTS.get(plural, W7))
    place = raw["spec"]
    *way, last = path.split(".")
    for name in way:
        place = place.setdefault(name, {})
    place[last] = value
    return read(kinds()[plural.removesuffix("!")], raw)


def body(found: Resource, kind: str = "Worker", index: int = 0, image: str = "") -> dict[str, Any]:
    return pod_body(controller(found.kind), found, Slot(kind, index), 0, image)


def told(name: str, kind: str = "Worker") -> Callable[[Resource], Any]:
    """A variable of a member's environment."""
    return lambda found: env(body(found, kind)).get(name)


def group(found: Resource) -> dict[str, Any]:
    spec: dict[str, Any] = group_body(flavours()["volcano"], controller(found.kind), found)["spec"]
    return spec


ELASTIC = "pytorchjobs!"
"""The job of ``W7``: workers alone."""
CASES: list[tuple[str, str, Any, Callable[[Resource], Any], Any]] = [
    ("farmjobs", "replicaSpecs.worker.replicas", 3, lambda job: job.job.size, 4),
    ("farmjobs", "replicaSpecs.worker.parallelism", 2, lambda job: job.job.types[1].parallelism, 2),
    ("farmjobs", "replicaSpecs.worker.restartPolicy", "Never", lambda job: job.job.types[1].restart, "never"),
    ("tfjobs", "runPolicy.backoffLimit", 2, lambda job: [over_limit(job.job, n) for n in (1, 2)], [0, 1]),
    ("farmjobs", "runPolicy.backoffLimit", 2, lambda job: [over_limit(job.job, n) for n in (2, 3)], [0, 1]),
    ("farmjobs", "runPolicy.activeDeadlineSeconds", 9, lambda job: job.job.active_deadline, 9),
    ("farmjobs", "runPolicy.ttlSecondsAfterFinished", 9, lambda job: job.job.ttl, 9),
    ("farmjobs", "runPolicy.cleanPodPolicy", "All", lambda job: job.job.clean, "all"),
    ("farmjobs", "runPolicy.suspend", False, lambda job: job.job.suspend, False),
    ("farmjobs", "runPolicy.restartScope", "Slot", lambda job: job.job.restart_scope, "slot"),
    ("tfjobs", "runPolicy.managedBy", "else", lambda job: job.managed_by, "else"),
    ("tfjobs", "runPolicy.schedulingPolicy.minAvailable", 2, lambda job: group(job)["minMember"], 2),
    ("tfjobs", "runPolicy.schedulingPolicy.queue", "q", lambda job: group(job)["queue"], "q"),
    (
        "tfjobs",
        "runPolicy.schedulingPolicy.priorityClass",
        "high",
        lambda job: group(job)["priorityClassName"],
        "high",
    ),
    (
        "tfjobs",
        "runPolicy.schedulingPolicy.minResources",
        {"cpu": "3"},
        lambda job: group(job)["minResources"],
        {"cpu": "3"},
    ),
    (
        "tfjobs",
        "runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
        30,
        lambda job: job.scheduling.schedule_timeout_seconds,
        30,
    ),
    ("tfjobs", "successPolicy", "AllWorkers", lambda job: job.job.success_index, None),
    ("farmjobs", "failurePolicy.rules", [], lambda job: job.job.rules, ()),
    ("farmjobs", "services", "each", lambda job: job.job.services, "each"),
    ("pytorchjobs", "nprocPerNode", "4", told("PET_NPROC_PER_NODE"), "4"),
    ("pytorchjobs", "nprocPerNode", 4, told("WORLD_SIZE"), "16"),
    ("pytorchjobs", "nprocPerNode", "gpu", told("WORLD_SIZE"), "4"),
    ("pytorchjobs", "nprocPerNode", None, told("PET_NPROC_PER_NODE", "Master"), "auto"),
    (ELASTIC, "nprocPerNode", "2", told("PET_NPROC_PER_NODE"), "2"),
    (ELASTIC, "elasticPolicy.minReplicas", 2, told("PET_NNODES"), "2:2"),
    (ELASTIC, "elasticPolicy.maxReplicas", 5, told("PET_NNODES"), "1:5"),
    (ELASTIC, "elasticPolicy", {}, told("PET_NNODES"), "2:2"),
    (ELASTIC, "elasticPolicy.rdzvBackend", "etcd-v2", told("PET_RDZV_BACKEND"), "etcd-v2"),
    (ELASTIC, "elasticPolicy.rdzvBackend", None, told("PET_RDZV_BACKEND"), "c10d"),
    (ELASTIC, "elasticPolicy.maxRestarts", 0, told("PET_MAX_RESTARTS"), "0"),
    (ELASTIC, "elasticPolicy.rdzvPort", 29400, told("PET_RDZV_ENDPOINT"), "w7-worker-0:29400"),
    (ELASTIC, "elasticPolicy.rdzvPort", None, told("PET_RDZV_ENDPOINT"), "w7-worker-0:23456"),
    (ELASTIC, "elasticPolicy.rdzvHost", "etcd", told("PET_RDZV_ENDPOINT"), "etcd:23456"),
    (ELASTIC, "elasticPolicy.rdzvId", "one", told("PET_RDZV_ID"), "one"),
    (
        ELASTIC,
        "elasticPolicy.rdzvConf",
        [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}],
        told("PET_RDZV_CONF"),
        "a=1,b=2",
    ),
    (ELASTIC, "elasticPolicy.standalone", True, told("PET_STANDALONE"), ""),
    (ELASTIC, "elasticPolicy.standalone", False, told("PET_STANDALONE"), None),
    (ELASTIC, "nprocPerNode", "2", lambda job: job.job.success, Success(operator="any", types=["Worker"])),
    (ELASTIC, "elasticPolicy", None, lambda job: job.job.success.operator, "all"),
    (ELASTIC, "elasticPolicy", None, told("PET_NNODES"), "2"),
    (ELASTIC, "elasticPolicy", None, told("PET_NPROC_PER_NODE"), "2"),
    (ELASTIC, "elasticPolicy", None, told("MASTER_ADDR"), None),
    ("tfjobs", "enableDynamicWorker", True, lambda job: spared(job.job, Slot("Worker", 1)), True),
    ("tfjobs", "enableDynamicWorker", True, lambda job: spared(job.job, Slot("Worker", 0)), False),
    ("tfjobs", "enableDynamicWorker", True, lambda job: spared(job.job, Slot("PS", 0)), False),
    ("tfjobs", "enableDynamicWorker", False, lambda job: spared(job.job, Slot("Worker", 1)), False),
]


@pytest.mark.parametrize(("plural", "path", "value", "look", "expected"), CASES)
def test_a_field_is_obeyed(plural: str, path: str, value: Any, look: Any, expected: Any) -> None:
    assert look(of(plural, path, value)) == expected


def test_the_number_of_processes_may_stand_in_the_elastic_policy_as_of_old() -> None:
    raw = yaml.safe_load(W7)
    raw["spec"] |= {"elasticPolicy": {"nProcPerNode": 3}, "nprocPerNode": None}
    assert told("PET_NPROC_PER_NODE")(read(kinds()["pytorchjobs"], raw)) == "3"


REFUSED = [
    ("farmjobs", "elasticPolicy", {}, "spec.elasticPolicy: found an empty mapping, expected none: a FarmJob"),
    ("tfjobs", "nprocPerNode", "2", "spec.nprocPerNode: found '2', expected none: a TFJob has no such field"),
    ("pytorchjobs", "enableDynamicWorker", True, "spec.enableDynamicWorker: found true, expected none"),
    ("pytorchjobs", "nprocPerNode", "many", "spec.nprocPerNode: found 'many', expected auto, cpu, gpu or"),
    (ELASTIC, "elasticPolicy.metrics", [{}], "spec.elasticPolicy.metrics: found 1, expected none: your own"),
    (
        ELASTIC,
        "elasticPolicy.minReplicas",
        3,
        "spec.elasticPolicy.minReplicas: found 3, expected at most max",
    ),
    (
        ELASTIC,
        "elasticPolicy.nProcPerNode",
        3,
        "spec.elasticPolicy.nProcPerNode: found 3, expected none besi",
    ),
    (ELASTIC, "elasticPolicy.rdzvBackend", "x", "spec.elasticPolicy.rdzvBackend: found 'x', expected one of"),
    (ELASTIC, "pytorchReplicaSpecs.Worker.replicas", 0, "spec.elasticPolicy: found no Worker with a replica"),
]


@pytest.mark.parametrize(("plural", "path", "value", "words"), REFUSED)
def test_a_field_that_cannot_be_obeyed_is_refused_by_its_name(
    plural: str, path: str, value: Any, words: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        of(plural, path, value)
    assert str(refused.value).startswith(words)


def test_an_elastic_job_of_workers_alone_is_told_how_its_members_meet() -> None:
    found = read(kinds()["pytorchjobs"], yaml.safe_load(W7))
    assert env(body(found, index=1)) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_ENDPOINT": "w7-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:2",
        "PET_MAX_RESTARTS": "10",
    }


def test_dynamic_workers_of_tensorflow_know_themselves_and_the_servers() -> None:
    found = of("tfjobs", "enableDynamicWorker", True)
    ps, worker = "m-ps-0.d.svc:2222", "m-worker-1.d.svc:2222"
    assert json.loads(env(body(found, "Worker", 1))["TF_CONFIG"]) == {
        "cluster": {"worker": {"1": worker}, "ps": [ps]},
        "task": {"type": "worker", "index": 1},
    }
    assert json.loads(env(body(found, "PS"))["TF_CONFIG"])["cluster"] == {"worker": {}, "ps": [ps]}


def test_an_evaluator_stands_in_the_cluster_of_tensorflow() -> None:
    raw = yaml.safe_load(TF)
    types = raw["spec"]["tfReplicaSpecs"]
    types["Evaluator"] = {"template": types["Ps"]["template"]}
    found = read(kinds()["tfjobs"], raw)
    config = json.loads(env(body(found, "Evaluator"))["TF_CONFIG"])
    assert config["cluster"]["evaluator"] == ["m-evaluator-0.d.svc:2222"]
    assert config["task"] == {"type": "evaluator", "index": 0}


def test_workers_wait_for_the_name_of_their_master_and_say_where_they_listen() -> None:
    found = read(kinds()["pytorchjobs"], yaml.safe_load(PYTORCH))
    (waits,) = body(found, "Worker", 0, "alpine:3.10")["spec"]["initContainers"]
    assert (waits["name"], waits["image"]) == ("init-pytorch", "alpine:3.10")
    assert "nslookup pytorch-dist-mnist-master-0" in waits["command"][-1]
    assert "initContainers" not in body(found, "Master", 0, "alpine:3.10")["spec"]
    assert "initContainers" not in body(found, "Worker", 0)["spec"]
    alone = read(kinds()["pytorchjobs"], yaml.safe_load(W7))
    assert "initContainers" not in body(alone, "Worker", 0, "alpine:3.10")["spec"]
    ports = [{"name": "pytorchjob-port", "containerPort": 23456}]
    main, beside = body(found, "Worker")["spec"]["containers"]
    assert (main["ports"], beside.get("ports")) == (ports, None)
    assert body(found, "Master")["spec"]["containers"][0]["ports"][0]["containerPort"] == 29500
    service = service_body(controller(found.kind), found, Slot("Worker", 0))
    assert service["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]


def fields() -> set[str]:
    """The fields that any of the kinds knows, by their last names."""
    known = (
        resource.RunPolicy,
        resource.SchedulingPolicy,
        resource.ReplicaSpec,
        resource.Common,
        training.Training,
        training.ElasticPolicy,
    )
    return {each.encode_name for one in known for each in msgspec.structs.fields(one)}


def test_every_field_has_a_case_and_a_row_in_the_docs() -> None:
    tried = {name for case in (*CASES, *REFUSED) for name in case[1].split(".")} | {"template"}
    assert fields() <= tried
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"[A-Za-z]+", row.split("|")[1])}
    assert fields() - named == set()
