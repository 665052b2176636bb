"""Custom resources as people have them: what they mean, what their members are told, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from farmd.config.fields import keys
from farmd.config.kubernetes import JOBS, KubernetesSection
from farmd.jobs.facts import Slot
from farmd.kubernetes.jobs.bodies import pod_body, service_body
from farmd.kubernetes.jobs.kindfile import JobKind, KindFile, kinds
from farmd.kubernetes.jobs.podgroups import flavours
from farmd.kubernetes.jobs.protocols import ControllerInterface
from farmd.kubernetes.jobs.resource import Resource, read
from store.errors import InputInvalid
from store.jobs import Rule, Success

EXAMPLES = Path(__file__).parents[3] / "examples" / "jobs"
PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pytorch-dist-mnist, namespace: kubeflow, uid: 7f}
spec:
  runPolicy: {cleanPodPolicy: Running, ttlSecondsAfterFinished: 600, backoffLimit: 3}
  pytorchReplicaSpecs:
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template:
        metadata: {annotations: {sidecar.istio.io/inject: "false"}}
        spec:
          containers:
            - name: pytorch
              image: example/pytorch-dist-mnist:v1
              args: ["--backend", "nccl"]
              env: [{name: NCCL_DEBUG, value: INFO}, {name: RANK, value: "99"}]
              resources: {limits: {nvidia.com/gpu: 1}}
            - {name: log-shipper, image: example/shipper}
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template:
        metadata: {labels: {app: mnist}}
        spec:
          restartPolicy: Always
          containers:
            - name: pytorch
              image: example/pytorch-dist-mnist:v1
              ports: [{name: pytorchjob-port, containerPort: 29500}]
"""
TF = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: m, namespace: d, uid: "8a"}
spec:
  tfReplicaSpecs:
    worker:
      replicas: 2
      restartPolicy: ExitCode
      template: {spec: {containers: [{name: tensorflow, image: example/mnist}, {name: board, image: b}]}}
    Ps:
      template: {spec: {containers: [{name: tensorflow, image: example/mnist}]}}
"""
FARM = """
apiVersion: farmd.io/v1
kind: FarmJob
metadata: {name: bert, namespace: ml, uid: "9c"}
spec:
  runPolicy: {restartScope: Job, suspend: true, activeDeadlineSeconds: 3600}
  successPolicy: {operator: Any, replicaTypes: [worker]}
  failurePolicy:
    rules:
      - {action: FailJob, exitCodes: [42], types: [worker]}
      - {action: Ignore, reasons: [Evicted]}
  replicaSpecs:
    worker: {replicas: 2, parallelism: 1, template: {spec: {containers: [{name: main, image: example/bert}]}}}
    launcher: {template: {spec: {containers: [{name: main, image: example/bert}]}}}
"""


def kind(plural: str) -> KindFile:
    return kinds()[plural]


def controller(data: KindFile) -> ControllerInterface:
    async def get(namespace: str, name: str) -> None:
        return None

    return JobKind(data, lambda namespace, name: None, get)


def job(plural: str, text: str, **changes: Any) -> Resource:
    raw = yaml.safe_load(text)
    raw["spec"].update(changes)
    return read(kind(plural), raw)


def pod(of: Resource, slot: Slot, attempt: int = 0) -> dict[str, Any]:
    return pod_body(controller(of.kind), of, slot, attempt)


def env(body: dict[str, Any], container: int = 0) -> dict[str, str]:
    return {each["name"]: each["value"] for each in body["spec"]["containers"][container].get("env", [])}


def test_every_kind_is_a_file_that_decodes() -> None:
    assert set(kinds()) == {"farmjobs", "pytorchjobs", "tfjobs"}
    for data in kinds().values():
        names = controller(data)
        assert names.controller_name() == data.plural
        assert str(names.get_api_group_version()) == f"{data.group}/v1"
        assert names.get_api_group_version_kind().kind == data.kind


def test_the_configuration_offers_every_kind_and_every_scheduler() -> None:
    offered = keys(KubernetesSection)["gang"].kind

    assert set(JOBS) == set(kinds())
    assert set(get_args(offered)) == {"", *flavours()}


def test_a_pytorch_job_means_what_its_operator_made_of_it() -> None:
    found = job("pytorchjobs", PYTORCH).job

    assert [(each.name, each.replicas, each.restart) for each in found.types] == [
        ("Master", 1, "on-failure"),
        ("Worker", 3, "on-failure"),
    ]
    assert (found.clean, found.ttl, found.backoff_limit) == ("running", 600, 3)
    assert found.success == Success(types=["Master"])
    assert found.services == "each"


def test_members_of_pytorch_know_master_rank_and_size_in_every_container() -> None:
    of = job("pytorchjobs", PYTORCH)
    master, worker = pod(of, Slot("Master", 0)), pod(of, Slot("Worker", 2))

    for container in (0, 1):
        found = env(worker, container)
        assert (found["RANK"], found["WORLD_SIZE"]) == ("3", "4")
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("pytorch-dist-mnist-master-0", "29500")
        assert (found["PET_NODE_RANK"], found["PET_NNODES"]) == ("3", "4")
        assert found["PYTHONUNBUFFERED"] == "1"
    assert env(worker)["NCCL_DEBUG"] == "INFO"
    assert env(master)["RANK"] == "0"
    assert [each["name"] for each in worker["spec"]["containers"][0]["env"]].count("RANK") == 1


def test_a_pod_bears_names_labels_and_owner_of_its_slot_and_the_attempt() -> None:
    master = pod(job("pytorchjobs", PYTORCH), Slot("Master", 0), 2)

    assert master["metadata"]["name"] == "pytorch-dist-mnist-master-0"
    assert master["metadata"]["labels"] == {
        "app": "mnist",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "pytorch-dist-mnist",
        "training.kubeflow.org/replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
    }
    annotations = master["metadata"]["annotations"]
    assert (annotations.keys(), annotations["farmd.io/attempt"]) == (
        {"farmd.io/attempt", "farmd.io/template"},
        "2",
    )
    (owner,) = master["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("PyTorchJob", "7f", True)
    assert master["spec"]["restartPolicy"] == "OnFailure"  # the template's own is not heeded


def test_rendering_changes_nothing_of_the_template() -> None:
    of = job("pytorchjobs", PYTORCH)
    before = json.dumps(of.templates)

    pod(of, Slot("Worker", 0))

    assert json.dumps(of.templates) == before


def test_a_tensorflow_job_describes_its_cluster_to_the_container_that_trains() -> None:
    of = job("tfjobs", TF)
    body = pod(of, Slot("Worker", 1))

    assert json.loads(env(body)["TF_CONFIG"]) == {
        "cluster": {
            "ps": ["m-ps-0.d.svc:2222"],
            "worker": ["m-worker-0.d.svc:2222", "m-worker-1.d.svc:2222"],
        },
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }
    assert env(body, 1) == {}
    assert body["spec"]["restartPolicy"] == "Never"


def test_a_tensorflow_job_of_one_member_is_not_distributed() -> None:
    worker = {"template": {"spec": {"containers": [{"name": "tensorflow"}]}}}

    assert env(pod(job("tfjobs", TF, tfReplicaSpecs={"Worker": worker}), Slot("Worker", 0))) == {}


@pytest.mark.parametrize(
    ("types", "policy", "decide", "index"),
    [
        (["Worker", "PS"], "", ["Worker"], 0),
        (["Worker", "PS"], "AllWorkers", ["Worker"], None),
        (["Chief", "Worker"], "", ["Chief"], None),
        (["Master", "Worker", "Evaluator"], "AllWorkers", ["Master"], None),
        (["PS"], None, [], None),
    ],
)
def test_the_chief_decides_about_tensorflow_else_the_first_worker(
    types: list[str], policy: str | None, decide: list[str], index: int | None
) -> None:
    one = {"template": {"spec": {"containers": [{"name": "tensorflow"}]}}}

    found = job("tfjobs", TF, tfReplicaSpecs=dict.fromkeys(types, one), successPolicy=policy).job

    assert (found.success.types, found.success_index) == (decide, index)


def test_the_master_role_is_that_of_the_chief_or_of_worker_0() -> None:
    of = job("tfjobs", TF)
    role = "training.kubeflow.org/job-role"

    assert role in pod(of, Slot("Worker", 0))["metadata"]["labels"]
    assert role not in pod(of, Slot("Worker", 1))["metadata"]["labels"]
    assert role not in pod(of, Slot("PS", 0))["metadata"]["labels"]


def test_a_farm_job_says_all_that_the_plan_knows() -> None:
    found = job("farmjobs", FARM).job

    assert [(each.name, each.replicas, each.parallelism) for each in found.types] == [
        ("launcher", 1, 0),
        ("worker", 2, 1),
    ]
    assert (found.backoff_limit, found.active_deadline, found.clean) == (6, 3600, "running")
    assert (found.restart_scope, found.suspend, found.services) == ("job", True, "shared")
    assert found.success == Success(operator="any", types=["worker"])
    assert found.rules == (
        Rule(action="fail-job", exit_codes=[42], types=["worker"]),
        Rule(action="ignore", reasons=["evicted"]),
    )


def test_members_of_a_farm_job_are_reached_below_one_service() -> None:
    of = job("farmjobs", FARM)
    body = pod(of, Slot("worker", 1), 3)
    service = service_body(controller(of.kind), of, None)

    assert (body["spec"]["hostname"], body["spec"]["subdomain"]) == ("bert-worker-1", "bert")
    assert env(body) == {
        "FARMD_JOB": "bert",
        "FARMD_TYPE": "worker",
        "FARMD_INDEX": "1",
        "FARMD_RANK": "2",
        "FARMD_WORLD_SIZE": "3",
        "FARMD_ATTEMPT": "3",
        "FARMD_MASTER_ADDRESS": "bert-launcher-0.bert.ml.svc",
        "FARMD_MASTER_PORT": "23456",
    }
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == ("bert", "None")
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"farmd.io/kind": "farmjob", "farmd.io/job-name": "bert"}
    assert service["spec"]["ports"] == []


def test_a_slots_service_selects_its_pod_and_has_its_ports() -> None:
    of = job("pytorchjobs", PYTORCH)
    master = service_body(controller(of.kind), of, Slot("Master", 0))
    worker = service_body(controller(of.kind), of, Slot("Worker", 0))

    assert master["metadata"]["name"] == "pytorch-dist-mnist-master-0"
    assert master["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 29500}]
    assert worker["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]
    labels = pod(of, Slot("Master", 0))["metadata"]["labels"]
    assert master["spec"]["selector"].items() <= labels.items()


def test_fields_that_are_null_are_missing_and_unknown_ones_are_ignored() -> None:
    found = job("tfjobs", TF, runPolicy=None, enableDynamicWorker=False, successPolicy=None)

    assert found.job.backoff_limit is None
    assert job("pytorchjobs", PYTORCH, nprocPerNode="auto", elasticPolicy=None).job.size == 4


def worker(**changes: Any) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "pytorch"}]}}}
    return {"pytorchReplicaSpecs": {"Worker": {**spec, **changes}}}


SPECS = "spec.pytorchReplicaSpecs"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pytorchReplicaSpecs": {}}, f"{SPECS}: found no types, expected at least one"),
        ({"pytorchReplicaSpecs": {"PS": {}}}, f"{SPECS}: found 'PS', expected one of Master, Worker"),
        (
            {"pytorchReplicaSpecs": {"worker": {}, "Worker": {}}},
            f"{SPECS}: found 'Worker' twice, in two spellings, expected each type once",
        ),
        (
            worker(template={"spec": {"containers": [{"name": "main"}]}}),
            f"{SPECS}.Worker.template.spec.containers: found 'main', expected 'pytorch'",
        ),
        (worker(template={}), f"{SPECS}.Worker.template.spec.containers: found none, expected 'pytorch'"),
        (worker(replicas=-1), f"{SPECS}.Worker.replicas: found -1, expected a whole number of at least 0"),
        (worker(replicas="3"), f"{SPECS}.Worker.replicas: found '3', expected a whole number of at least 0"),
        (
            worker(restartPolicy="Sometimes"),
            f"{SPECS}.Worker.restartPolicy: found 'Sometimes', "
            "expected one of Always, ExitCode, Never, OnFailure",
        ),
        (
            {"runPolicy": {"backoffLimit": -1}},
            "spec.runPolicy.backoffLimit: found -1, expected a whole number of at least 0",
        ),
        (
            {"runPolicy": {"cleanPodPolicy": "Most"}},
            "spec.runPolicy.cleanPodPolicy: found 'Most', expected one of All, None, Running",
        ),
        (
            {"successPolicy": {"replicaTypes": ["Chief"]}},
            "spec.successPolicy.replicaTypes: found 'Chief', expected one of the job's types: Master, Worker",
        ),
        (
            {
                "successPolicy": {"replicaTypes": ["Master"]},
                SPECS.removeprefix("spec."): {
                    **worker()["pytorchReplicaSpecs"],
                    "Master": {**worker()["pytorchReplicaSpecs"]["Worker"], "replicas": 0},
                },
            },
            "spec.successPolicy.replicaTypes: found Master with 0 replicas, expected a type that has slots",
        ),
        ({"pytorchReplicaSpecs": [1]}, f"{SPECS}: found a list, expected a mapping"),
        ({"runPolicy": "fast"}, "spec.runPolicy: found 'fast', expected a mapping"),
    ],
)
def test_what_cannot_be_a_job_is_one_line_that_names_the_field(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputInvalid) as refused:
        job("pytorchjobs", PYTORCH, **changes)

    assert str(refused.value) == told


def test_names_that_would_be_too_long_are_refused() -> None:
    raw = yaml.safe_load(PYTORCH)
    raw["metadata"]["name"] = "b" * 58

    with pytest.raises(
        InputInvalid, match=r"metadata\.name: found 58 characters, expected at most 54 beside"
    ):
        read(kind("pytorchjobs"), raw)


def test_an_array_is_no_gang() -> None:
    with pytest.raises(InputInvalid, match=r"replicaSpecs\.worker\.parallelism: found 1, expected 0"):
        read(kind("farmjobs"), yaml.safe_load(FARM), gangs=True)


def test_a_job_that_another_controller_manages_says_so() -> None:
    of = job("pytorchjobs", PYTORCH, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})

    assert of.managed_by == "kueue.x-k8s.io/multikueue"


@pytest.mark.parametrize("plural", ["farmjobs", "pytorchjobs"])
def test_the_example_of_a_kind_is_a_job(plural: str) -> None:
    text = (EXAMPLES / f"{plural.removesuffix('s')}.yaml").read_text()

    of = read(kind(plural), yaml.safe_load(text))

    for each in of.job.types:
        assert pod(of, Slot(each.name, 0))["metadata"]["name"] == f"{of.metadata.name}-{each.name.lower()}-0"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ({"spec": "x"}, "template.spec: found 'x', expected a mapping"),
        (
            {"spec": {"containers": {"name": "m"}}},
            "template.spec.containers: found a mapping, expected a list",
        ),
        ({"spec": {"containers": ["m"]}}, "template.spec.containers[0]: found 'm', expected a mapping"),
        ({"metadata": {"labels": {"a": 1}}}, "template.metadata.labels.a: found 1, expected text"),
        (
            {"spec": {"containers": [{"name": "m", "env": [{"value": "x"}]}]}},
            "template.spec.containers[0].env[0].name: missing, expected text",
        ),
        (
            {"spec": {"containers": [{"name": "m", "resources": {"limits": {"cpu": [1]}}}]}},
            "template.spec.containers[0].resources.limits.cpu: found a list, expected text or",
        ),
    ],
)
def test_a_template_of_any_form_that_a_schema_let_in_is_refused_and_no_crash(
    template: dict[str, Any], told: str
) -> None:
    raw = yaml.safe_load(FARM)
    raw["spec"]["replicaSpecs"]["worker"]["template"] = template
    with pytest.raises(InputInvalid) as refused:
        read(kind("farmjobs"), raw)
    assert str(refused.value).startswith(f"spec.replicaSpecs.worker.{told}")
