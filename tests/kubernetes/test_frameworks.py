"""TFJob and PyTorchJob on a real API server, whose definitions know no field of farmd's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from farmd.kubernetes.objects import PODS, SERVICES, Resource
from tests.fleet import cluster_on
from tests.kubernetes.definitions import NUMBER, OPEN, TEXT, TIME, define, fields, several
from tests.kubernetes.farmjobs import RUNNING, SUCCEEDED, Jobs, failed, template
from tests.kubernetes.job_people import Run, document, person

pytestmark = pytest.mark.xdist_group("kubernetes")

CONDITION = {"type": TEXT, "status": TEXT, "reason": TEXT, "message": TEXT}
STATUS = fields(
    conditions={
        "type": "array",
        "items": fields(**CONDITION, lastUpdateTime=TIME, lastTransitionTime=TIME),
    },
    replicaStatuses=several(fields(active=NUMBER, succeeded=NUMBER, failed=NUMBER, selector=TEXT)),
    startTime=TIME,
    completionTime=TIME,
    lastReconcileTime=TIME,
)
"""The status of the training operator's jobs: fields that it does not name are dropped."""

WORKERS = ".status.replicaStatuses.Worker"
SCALE = {
    "specReplicasPath": ".spec.pytorchReplicaSpecs.Worker.replicas",
    "statusReplicasPath": f"{WORKERS}.active",
    "labelSelectorPath": f"{WORKERS}.selector",
}

CONTAINERS = {"tfReplicaSpecs": "tensorflow", "pytorchReplicaSpecs": "pytorch"}


class Frameworks(Jobs):
    """Jobs of one of Kubeflow's kinds."""

    def create(self, name: str, types: dict[str, dict[str, Any]], **spec: Any) -> dict[str, Any]:
        """A job; each template has the container that does the work, and one beside it."""
        pod = template(CONTAINERS[self.types])
        pod["spec"]["containers"].append({"name": "beside", "image": "none"})
        return super().create(name, {kind: {"template": pod} | each for kind, each in types.items()}, **spec)

    async def run(self) -> None:
        """Have all pods run."""
        for name in self.pods():
            self.play(name, RUNNING)

    def environment(self, pod: str, container: str = "") -> dict[str, str]:
        """The environment of a container, by default the one that does the work."""
        wanted = container or CONTAINERS[self.types]
        (found,) = (each for each in self.pods()[pod]["spec"]["containers"] if each["name"] == wanted)
        return {each["name"]: each["value"] for each in found.get("env", ())}


Open = Callable[[str, str, str], Awaitable[Frameworks]]


@pytest.fixture
async def opened(api, namespace, connect, consul_dev) -> AsyncIterator[Open]:
    """Jobs of a kind, with one farm."""
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def frameworks(kind: str, plural: str, types: str) -> AsyncIterator[Frameworks]:
            async with cluster_on(consul_dev) as cluster:
                jobs = Frameworks(api, namespace, cluster, consul_dev, connect)
                jobs.resource, jobs.types = Resource("kubeflow.org", "v1", plural, kind), types
                scale = SCALE if plural == "pytorchjobs" else {}
                await define(api, jobs.resource, OPEN, STATUS, **scale)
                try:
                    await jobs.farm("first")
                    yield jobs
                finally:
                    await jobs.close()

        async def open_(kind: str, plural: str, types: str) -> Frameworks:
            return await stack.enter_async_context(frameworks(kind, plural, types))

        yield open_


@pytest.fixture
async def tfjobs(opened: Open) -> Frameworks:
    return await opened("TFJob", "tfjobs", "tfReplicaSpecs")


@pytest.fixture
async def pytorchjobs(opened: Open) -> Frameworks:
    return await opened("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs")


async def test_a_tfjob_s_members_know_each_other_and_its_chief_decides(tfjobs: Frameworks) -> None:
    types = {"PS": {"replicas": 1}, "Chief": {"replicas": 1}, "Worker": {"replicas": 2}}
    tfjobs.create("mnist", types, runPolicy={"cleanPodPolicy": "Running"})
    names = {"mnist-ps-0", "mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}
    await tfjobs.until("four pods", lambda: tfjobs.pods().keys() == names)

    config = json.loads(tfjobs.environment("mnist-worker-1")["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    place = f".{tfjobs.namespace}.svc:2222"
    assert config["cluster"]["worker"] == [f"mnist-worker-0{place}", f"mnist-worker-1{place}"]
    assert config["cluster"]["ps"] == [f"mnist-ps-0{place}"]
    assert tfjobs.environment("mnist-worker-1", "beside") == {}
    services = tfjobs.listed(SERVICES)
    assert services.keys() == names
    for name, service in services.items():
        assert service["spec"]["selector"].items() <= tfjobs.pods()[name]["metadata"]["labels"].items()
        assert [each["port"] for each in service["spec"]["ports"]] == [2222]

    await tfjobs.run()
    tfjobs.play("mnist-chief-0", SUCCEEDED)
    await tfjobs.until("a job that succeeded", lambda: "Succeeded" in tfjobs.states("mnist"))
    await tfjobs.until("no pods that run", lambda: tfjobs.pods().keys() == {"mnist-chief-0"})
    await tfjobs.until("no services of those", lambda: tfjobs.listed(SERVICES).keys() == {"mnist-chief-0"})


async def test_a_tfjob_without_a_chief_ends_with_its_first_worker(tfjobs: Frameworks) -> None:
    tfjobs.create("solo", {"Worker": {"replicas": 2}})
    await tfjobs.until("two pods", lambda: len(tfjobs.pods()) == 2)
    await tfjobs.run()
    tfjobs.play("solo-worker-1", SUCCEEDED)
    await tfjobs.until(
        "the end of one worker",
        lambda: tfjobs.job("solo")["status"]["replicaStatuses"]["Worker"].get("succeeded") == 1,
    )
    assert "Succeeded" not in tfjobs.states("solo")
    tfjobs.play("solo-worker-0", SUCCEEDED)
    await tfjobs.until("a job that succeeded", lambda: "Succeeded" in tfjobs.states("solo"))


async def test_a_pytorchjob_s_members_know_their_master_who_decides(pytorchjobs: Frameworks) -> None:
    types = {"Master": {"replicas": 1}, "Worker": {"replicas": 2, "restartPolicy": "ExitCode"}}
    pytorchjobs.create("bert", types, runPolicy={"cleanPodPolicy": "All"})
    names = {"bert-master-0", "bert-worker-0", "bert-worker-1"}
    await pytorchjobs.until("three pods", lambda: pytorchjobs.pods().keys() == names)

    told = {"MASTER_ADDR": "bert-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "2"}
    for container in ("pytorch", "beside"):
        assert told.items() <= pytorchjobs.environment("bert-worker-1", container).items()
    assert pytorchjobs.environment("bert-master-0")["RANK"] == "0"
    assert pytorchjobs.listed(SERVICES).keys() == names

    await pytorchjobs.run()
    pytorchjobs.play("bert-master-0", SUCCEEDED)
    await pytorchjobs.until("a job that succeeded", lambda: "Succeeded" in pytorchjobs.states("bert"))
    await pytorchjobs.until("nothing left", lambda: not pytorchjobs.pods())
    await pytorchjobs.until("no services", lambda: not pytorchjobs.listed(SERVICES))
    assert "claim" not in pytorchjobs.job("bert")["status"]


async def test_an_elastic_job_grows_and_shrinks_while_it_runs(pytorchjobs: Frameworks) -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 3}
    pytorchjobs.create("echo", {"Worker": {"replicas": 2}}, elasticPolicy=elastic, nprocPerNode="2")
    path = pytorchjobs.resource.path(pytorchjobs.namespace, "echo", "scale")

    async def scaled(workers: int) -> dict[str, dict[str, Any]]:
        names = {f"echo-worker-{index}" for index in range(workers)}
        await pytorchjobs.until(f"{workers} workers", lambda: pytorchjobs.pods().keys() == names)
        await pytorchjobs.run()
        read = pytorchjobs.server.ask
        await pytorchjobs.until("their count", lambda: read("GET", path)["status"]["replicas"] == workers)
        return pytorchjobs.pods()

    first = await scaled(2)
    told = {"PET_RDZV_ENDPOINT": "echo-worker-0:23456", "PET_NNODES": "1:4", "PET_MAX_RESTARTS": "3"}
    assert told.items() <= pytorchjobs.environment("echo-worker-1").items()
    selector = pytorchjobs.server.ask("GET", path)["status"]["selector"]
    chosen = pytorchjobs.server.ask("GET", f"{PODS.path(pytorchjobs.namespace)}?labelSelector={selector}")
    assert {each["metadata"]["name"] for each in chosen["items"]} == first.keys()
    for workers in (4, 1):
        pytorchjobs.server.patch(path, {"spec": {"replicas": workers}})
        pods = await scaled(workers)
        for name in list(first)[: min(workers, 2)]:
            assert pods[name]["metadata"]["uid"] == first[name]["metadata"]["uid"]
    assert pytorchjobs.states("echo") == {"Created", "Running"}
    pytorchjobs.play("echo-worker-0", SUCCEEDED)
    await pytorchjobs.until("a job that succeeded", lambda: "Succeeded" in pytorchjobs.states("echo"))
    assert pytorchjobs.job("echo")["status"]["replicaStatuses"]["Worker"].get("failed", 0) == 0


async def test_a_field_that_cannot_be_obeyed_blocks_the_job_by_its_name(pytorchjobs: Frameworks) -> None:
    pytorchjobs.create("echo", {"Worker": {"replicas": 1}}, nprocPerNode="many")
    await pytorchjobs.until("a job that is blocked", lambda: "Blocked" in pytorchjobs.states("echo"))
    conditions = pytorchjobs.job("echo")["status"]["conditions"]
    (told,) = (each["message"] for each in conditions if each["type"] == "Blocked")
    assert told.startswith("spec.nprocPerNode: found 'many', expected auto, cpu, gpu or")
    change = {"spec": {"nprocPerNode": "auto"}}
    pytorchjobs.server.patch(pytorchjobs.resource.path(pytorchjobs.namespace, "echo"), change)
    await pytorchjobs.until("its pod", lambda: len(pytorchjobs.pods()) == 1)


async def test_a_pytorchjob_s_master_that_fails_for_good_fails_the_job(pytorchjobs: Frameworks) -> None:
    pytorchjobs.create("bad", {"Master": {"restartPolicy": "ExitCode"}, "Worker": {"replicas": 1}})
    await pytorchjobs.until("two pods", lambda: len(pytorchjobs.pods()) == 2)
    await pytorchjobs.run()
    pytorchjobs.play("bad-master-0", failed(1))
    await pytorchjobs.until("a job that failed", lambda: "Failed" in pytorchjobs.states("bad"))
    assert len(pytorchjobs.pods()) == 2


async def test_r16_a_claim_changes_the_version_of_a_job_whose_definition_drops_the_claim(
    tfjobs: Frameworks,
) -> None:
    """So a farm that was stopped in front of its first write to the job cannot make it after another's."""
    tfjobs.create("once", {"Worker": {"replicas": 2}})
    await tfjobs.until("two pods", lambda: len(tfjobs.pods()) == 2)
    await tfjobs.until("a status", lambda: "Created" in tfjobs.states("once"))
    await tfjobs.stop("first")
    before = tfjobs.job("once")
    path = PODS.path(tfjobs.namespace, "once-worker-1")
    tfjobs.server.ask("DELETE", path, {"gracePeriodSeconds": 0})
    await tfjobs.farm("second")
    await tfjobs.until("the pod again", lambda: len(tfjobs.pods()) == 2)
    after = tfjobs.job("once")
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    told = [each["status"].pop("lastReconcileTime") for each in (before, after)]
    assert told[0] != told[1]
    assert before["status"] == after["status"]


async def test_the_example_of_a_pytorchjob_runs_to_its_end(pytorchjobs: Frameworks, tmp_path: Path) -> None:
    farmctl, done = person(pytorchjobs, tmp_path), example("pytorchjob", pytorchjobs.namespace)
    waiting = asyncio.create_task(farmctl("job", "run", "-f", "-", "--wait", stdin=done))
    names = {"mnist-master-0", "mnist-worker-0", "mnist-worker-1", "mnist-worker-2"}
    await pytorchjobs.until("four pods", lambda: pytorchjobs.pods().keys() == names)
    assert pytorchjobs.environment("mnist-worker-2")["RANK"] == "3"
    await pytorchjobs.run()
    pytorchjobs.play("mnist-master-0", SUCCEEDED)
    over = await waiting
    assert (over.code, over.out) == (0, f"job/{pytorchjobs.namespace}/mnist created\n")
    same = await farmctl("job", "run", "-f", "-", stdin=done)
    assert same.out == f"job/{pytorchjobs.namespace}/mnist unchanged\n"
    assert (await farmctl("job", "list", "-o", "json")).json["items"][0][
        "resource"
    ] == "pytorchjobs.kubeflow.org"


async def test_the_example_of_a_farmjob_runs_to_its_end(jobs: Jobs, farmctl: Run) -> None:
    text = example("farmjob", jobs.namespace)
    waiting = asyncio.create_task(farmctl("job", "run", "-f", "-", "--wait", stdin=text))
    names = {"bert-launcher-0", "bert-worker-0", "bert-worker-1"}
    await jobs.until("three pods", lambda: jobs.pods().keys() == names)
    for name in names:
        jobs.play(name, RUNNING)
    jobs.play("bert-launcher-0", SUCCEEDED)
    over = await waiting
    assert over.code == 0
    assert f"job/{jobs.namespace}/bert: succeeded" in over.err
    await jobs.until("no workers", lambda: jobs.pods().keys() == {"bert-launcher-0"})


async def test_jobs_of_two_kinds_that_have_one_name_are_told_apart_by_their_kind(
    pytorchjobs: Frameworks, tmp_path: Path
) -> None:
    farmctl = person(pytorchjobs, tmp_path)
    assert (await farmctl("kubernetes", "install")).code == 0
    pytorchjobs.create("twin", {"Master": {}})
    assert (await farmctl("job", "run", "-f", "-", stdin=[document("twin")])).code == 0
    name = f"{pytorchjobs.namespace}/twin"
    both = await farmctl("job", "get", name)
    assert both.code == 2
    assert f"expected farmjob.farmd.io/{name} or pytorchjob.kubeflow.org/{name}" in both.err
    one = await farmctl("job", "get", f"job/pytorchjob.kubeflow.org/{name}", "-o", "json")
    assert (one.json["kind"], one.json["resource"]) == ("Job", "pytorchjobs.kubeflow.org")
    assert one.json["types"] == {"Master": 1}
    for slot in ("", "/master/0"):
        log = await farmctl("job", "logs", f"job/pytorchjob.kubeflow.org/{name}{slot}")
        assert "pod twin-master-0 has not started yet" in log.err, log
    short = await farmctl("job", "logs", "pytorchjob.kubeflow.org/twin/master/0")
    assert (short.code, short.out) == (2, "")
    assert "expected [KIND/]NAMESPACE/JOB/TYPE/INDEX" in short.err


def example(name: str, namespace: str) -> str:
    """The text of an example, for a namespace."""
    text = (Path(__file__).parents[2] / "examples" / "jobs" / f"{name}.yaml").read_text()
    return text.replace("namespace: ml", f"namespace: {namespace}")
