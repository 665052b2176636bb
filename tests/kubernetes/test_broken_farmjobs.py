"""Broken FarmJob files: one line that names the file and the field, exit 2, and nothing is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.farmctl import Farmctl, in_cluster
from tests.kubernetes.farmjobs import JOBS

pytestmark = pytest.mark.xdist_group("kubernetes")


def job(spec: str = "", worker: str = "", container: str = "", meta: str = "name: bert") -> str:
    """A good file with more lines in its parts, each in the flow style of YAML."""
    own = f"{{name: main, image: none{', ' if container else ''}{container}}}"
    template = f"template: {{spec: {{containers: [{own}]}}}}"
    types = f"replicaSpecs: {{Worker: {{{worker or template}}}}}"
    return (
        f"apiVersion: farmd.io/v1\nkind: FarmJob\nmetadata: {{{meta}}}\n"
        f"spec: {{{types}{', ' if spec else ''}{spec}}}\n"
    )


def worker(more: str) -> str:
    """One with more fields of its type."""
    return job(worker=f"{more}, template: {{spec: {{containers: [{{name: main, image: none}}]}}}}")


GOOD = job()
FARMD = (
    "FARMD_JOB, FARMD_TYPE, FARMD_INDEX, FARMD_RANK, FARMD_WORLD_SIZE, FARMD_ATTEMPT, FARMD_MASTER_ADDRESS"
)
BROKEN = {
    "empty": ("", "found no document, expected at least one"),
    "a list": ("- apiVersion: farmd.io/v1", "found a list, expected a mapping"),
    "not yaml": ("kind: FarmJob\nspec: {", "not YAML: "),
    "a tab": ("kind: FarmJob\nspec:\n\treplicaSpecs: {}", "not YAML: found a tab, expected spaces"),
    "a key twice": (GOOD + "kind: FarmJob\n", "kind"),
    "an unknown anchor": (GOOD.replace("image: none", "image: *none"), "found the alias *none, expected"),
    "aliases without end": (
        "kind: &a [*a]",
        "line 1: found the alias *a, expected a value above it in the same document, marked &a",
    ),
    "wrong version": (
        GOOD.replace("farmd.io/v1", "farmd.io/v2"),
        "apiVersion: found 'farmd.io/v2', expected 'farmd.io/v1' for a FarmJob",
    ),
    "no version": (GOOD.replace("apiVersion: farmd.io/v1\n", ""), "apiVersion: found nothing, expected"),
    "another kind": (GOOD.replace("FarmJob", "Farmjob"), "kind: found 'Farmjob', did you mean 'FarmJob'?"),
    "a list as kind": (
        GOOD.replace("kind: FarmJob", "kind: [FarmJob]"),
        "kind: found a list, expected one of FarmJob, PyTorchJob, TFJob",
    ),
    "a number as namespace": (
        job(meta="name: bert, namespace: 5"),
        "metadata.namespace: found 5, expected",
    ),
    "a type that is nothing": (
        job(worker="template: null}, Chief: {template: null"),
        "spec.replicaSpecs.Chief.template.spec.containers: found none, expected at least one",
    ),
    "no kind": (
        GOOD.replace("kind: FarmJob\n", ""),
        "kind: found nothing, expected one of FarmJob, PyTorchJob, TFJob",
    ),
    "an unknown key": (GOOD + "specs: {}\n", "specs: unknown key, did you mean 'spec'?"),
    "no name": (job(meta="labels: {a: b}"), "metadata.name: found nothing, expected 1 to 63"),
    "a bad name": (job(meta="name: Bert_1"), "metadata.name: found 'Bert_1', expected 1 to 63"),
    "a number as name": (job(meta="name: 7"), "metadata.name: found 7, expected 1 to 63"),
    "a bad label": (job(meta="name: bert, labels: {a: 1}"), "metadata.labels.a: found 1, expected text"),
    "a label that no server takes": (job(meta='name: bert, labels: {a: "x y"}'), "metadata.labels: Invalid"),
    "no spec": (GOOD[: GOOD.index("spec:")], "spec: found nothing, expected a mapping"),
    "no types": (
        GOOD[: GOOD.index("spec:")] + "spec: {replicaSpecs: {}}",
        "spec.replicaSpecs: found no types, expected at least one",
    ),
    "types alike": (
        job(worker="template: &t {spec: {containers: [{name: m, image: n}]}}}, WORKER: {template: *t"),
        "spec.replicaSpecs: found 'WORKER' twice, in two spellings, expected each type once",
    ),
    "negative replicas": (
        worker("replicas: -1"),
        "spec.replicaSpecs.Worker.replicas: found -1, expected a whole number of at least 0",
    ),
    "too many replicas": (
        worker("replicas: 5001"),
        "spec.replicaSpecs.Worker.replicas: found 5001, expected at most 5000, or a parallelism",
    ),
    "too large an array": (
        worker("replicas: 100001, parallelism: 5"),
        "spec.replicaSpecs.Worker.replicas: found 100001, expected at most 100000",
    ),
    "replicas as text": (worker("replicas: many"), "spec.replicaSpecs.Worker.replicas: found 'many'"),
    "names too long": (
        job(meta=f"name: {'b' * 60}"),
        "metadata.name: found 60 characters, expected at most 54 beside type 'Worker'",
    ),
    "an unknown restart policy": (
        worker("restartPolicy: Sometimes"),
        "spec.replicaSpecs.Worker.restartPolicy: found 'Sometimes', expected one of",
    ),
    "no containers": (
        job(worker="template: {spec: {}}"),
        "spec.replicaSpecs.Worker.template.spec.containers: found none, expected at least one",
    ),
    "containers as mapping": (
        job(worker="template: {spec: {containers: {name: main}}}"),
        "spec.replicaSpecs.Worker.template.spec.containers: found a mapping, expected a list",
    ),
    "a port as text": (
        job(container="ports: [{containerPort: http}]"),
        "template.spec.containers[0].ports[0].containerPort: found 'http', expected a whole number",
    ),
    "a gang with parallelism": (
        job(
            "runPolicy: {schedulingPolicy: {queue: a}}",
            "replicas: 4, parallelism: 2, template: {spec: {containers: [{name: m, image: n}]}}",
        ),
        "spec.replicaSpecs.Worker.parallelism: found 2, expected 0: all members of a gang run together",
    ),
    "an unknown variable": (
        job(container='command: [sh, -c, "echo ${FARMD_RANKS}"]'),
        "spec.replicaSpecs.Worker.template.spec.containers[0].command[2]: found 'FARMD_RANKS', "
        f"expected one of {FARMD}",
    ),
    "a variable of jobs on nodes": (
        job(container="env: [{name: PEERS, value: $(FARMD_PEERS_FILE)}]"),
        "containers[0].env[0].value: found 'FARMD_PEERS_FILE', expected one of",
    ),
    "a pod that no server takes": (
        GOOD.replace("name: main", "name: No Name"),
        'spec.replicaSpecs.Worker.template: Pod "bert-worker-0" is invalid: spec.containers[0].name',
    ),
    "an unknown field of a pod": (
        job(container="imagePullPolice: Always"),
        'template: Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
        '"spec.containers[0].imagePullPolice"',
    ),
    "no image": (
        GOOD.replace(", image: none", ""),
        'Worker.template: Pod "bert-worker-0" is invalid: spec.containers[0].image: Required value',
    ),
    "negative limit": (
        job("runPolicy: {backoffLimit: -1}"),
        "spec.runPolicy.backoffLimit: found -1, expected a whole number of at least 0",
    ),
    "a deadline of nothing": (
        job("runPolicy: {activeDeadlineSeconds: 0}"),
        "spec.runPolicy.activeDeadlineSeconds: Invalid value: 0",
    ),
    "an unknown field": (
        job("runPolicy: {backofLimit: 3}"),
        "spec.runPolicy.backofLimit: unknown key, did you mean 'backoffLimit'?",
    ),
    "an unknown field of a type": (
        worker("replica: 3"),
        "spec.replicaSpecs.Worker.replica: unknown key, did you mean 'replicas'?",
    ),
    "success over an unknown type": (
        job("successPolicy: {replicaTypes: [Chief]}"),
        "spec.successPolicy.replicaTypes: found 'Chief', expected one of the job's types: Worker",
    ),
    "an unknown action": (
        job("failurePolicy: {rules: [{action: Explode}]}"),
        "spec.failurePolicy.rules[0].action: found 'Explode', expected one of",
    ),
    "a rule of an unknown type": (
        job("failurePolicy: {rules: [{action: Ignore, types: [Chief]}]}"),
        "spec.failurePolicy.rules[0].types: found 'Chief', expected one of",
    ),
    "an unknown parameter": (
        GOOD.replace("image: none", 'image: "${param.image}"'),
        "found '${param.image}', expected a declared parameter: none",
    ),
    "another namespace": (
        job(meta="name: bert, namespace: other"),
        "metadata.namespace: found 'other', expected",
    ),
    "one good, one bad": (f"{GOOD}---\n{worker('replicas: -1')}", "bert.yaml (document 2): spec."),
    "one name twice": (f"{GOOD}---\n{GOOD}", "/bert' again, expected each name once"),
}


@pytest.fixture(scope="session")
def installed(api, tmp_path_factory) -> Path:
    """The kubeconfig of a cluster with farmd's definitions."""
    path: Path = tmp_path_factory.mktemp("config") / "kubeconfig"
    path.write_text(api.kubeconfig())
    Farmctl("127.0.0.1:1", inside=True).ok("kubernetes", "install", "--kubeconfig", str(path))
    return path


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_one_line_and_creates_nothing(what, api, namespace, installed, tmp_path) -> None:
    text, line = BROKEN[what]
    path = tmp_path / "bert.yaml"
    path.write_text(text)
    run = Farmctl("127.0.0.1:1", inside=True)
    done = run("job", "run", "-f", str(path), "--kubeconfig", str(installed), "-n", namespace)
    error, *hints = done.err.splitlines()
    assert error.startswith(f"farmctl: {path}")
    assert line in error
    assert done.code == 2
    assert all(each.startswith("hint: ") for each in hints)
    assert api.ask("GET", JOBS.path(namespace))["items"] == []


def test_a_type_that_is_null_is_as_good_as_missing(api, namespace, installed, tmp_path, consul_dev) -> None:
    path = tmp_path / "bert.yaml"
    path.write_text(GOOD.replace("replicaSpecs: {", "replicaSpecs: {Chief: null, "))
    done = in_cluster(consul_dev)(
        "job", "run", "-f", str(path), "--kubeconfig", str(installed), "-n", namespace, "--dry-run"
    )
    assert done.code == 0
    assert "create: kind FarmJob, slots 1" in done.out


def test_the_file_that_the_broken_ones_come_from_is_accepted(
    api, namespace, installed, tmp_path, consul_dev
) -> None:
    path = tmp_path / "bert.yaml"
    path.write_text(GOOD)
    run = in_cluster(consul_dev)
    run.ok("job", "run", "-f", str(path), "--kubeconfig", str(installed), "-n", namespace, "--dry-run")
    assert api.ask("GET", JOBS.path(namespace))["items"] == []
