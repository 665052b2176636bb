"""Farms run FarmJobs on a real API server, from the resource to its verdict; the test plays the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from farmd.kubernetes.install import install
from farmd.kubernetes.resources import PODS, SERVICES, Resource
from farmd.kubernetes.settings import KubernetesSettings
from farmd.runtime.clock import SystemClock
from tests.fleet import Cluster, client_of, cluster_on, eventually, start_farm
from tests.kubernetes_server import ApiServer

pytestmark = pytest.mark.xdist_group("kubernetes")

JOBS = Resource("farmd.io", "v1", "farmjobs", "FarmJob")
RUNNING = {"phase": "Running"}
SUCCEEDED = {"phase": "Succeeded"}


def failed(code: int) -> dict[str, Any]:
    """The status of a pod whose program ended so."""
    ended = {"name": "main", "ready": False, "restartCount": 0, "image": "none", "imageID": "none"}
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    return {"phase": "Failed", "containerStatuses": [ended | {"state": state}]}


class Jobs:
    """Jobs of one namespace, the farms that run them, and a kubelet that does what the test says."""

    def __init__(
        self, server: ApiServer, namespace: str, cluster: Cluster, consul: str, connect: Any
    ) -> None:
        self.server, self.namespace = server, namespace
        self._cluster, self._address, self._connect = cluster, consul, connect
        self._farms: dict[str, AsyncExitStack] = {}

    async def farm(self, name: str) -> None:
        """One more farm."""
        self._farms[name] = stack = AsyncExitStack()
        transport = await stack.enter_async_context(self._connect(self.server))
        settings = KubernetesSettings(transport, name=self.namespace, namespaces=(self.namespace,))
        client = client_of(self._address)
        stack.push_async_callback(client.close)
        outside = {"kubernetes": settings}
        keys = self._cluster.keys
        farm = await start_farm(client, name, keys=keys, kinds=("kubejobs",), outside=outside)
        stack.push_async_callback(farm.close)

    async def stop(self, name: str) -> None:
        """Stop a farm cleanly."""
        await self._farms.pop(name).aclose()

    async def close(self) -> None:
        """Stop all farms."""
        for name in list(self._farms):
            await self.stop(name)

    def create(self, name: str, types: dict[str, dict[str, Any]], **spec: Any) -> dict[str, Any]:
        """A job; each type's template is that of a small pod."""
        template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
        specs = {kind: {"template": template} | each for kind, each in types.items()}
        body = {"apiVersion": "farmd.io/v1", "kind": "FarmJob", "metadata": {"name": name}}
        created: dict[str, Any] = self.server.ask(
            "POST", JOBS.path(self.namespace), body | {"spec": {"replicaSpecs": specs} | spec}
        )
        return created

    def job(self, name: str) -> dict[str, Any]:
        """A job as the server has it."""
        found: dict[str, Any] = self.server.ask("GET", JOBS.path(self.namespace, name))
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        """All pods by name, without those that leave."""
        listed = self.server.ask("GET", PODS.path(self.namespace))["items"]
        return {one["metadata"]["name"]: one for one in listed if "deletionTimestamp" not in one["metadata"]}

    def play(self, pod: str, status: dict[str, Any]) -> None:
        """Say of a pod what the kubelet would."""
        self.server.patch(PODS.path(self.namespace, pod, "status"), {"status": status})

    async def until(self, what: str, check: Callable[[], bool]) -> None:
        """Wait until that is so."""

        async def checked() -> bool:
            return await asyncio.to_thread(check)

        await eventually(checked, what=what)

    def states(self, name: str) -> set[str]:
        """The conditions of a job that hold."""
        conditions = self.job(name).get("status", {}).get("conditions") or []
        return {one["type"] for one in conditions if one["status"] == "True"}


@pytest.fixture
async def jobs(api, namespace, connect, consul_dev) -> AsyncIterator[Jobs]:
    async with connect(api) as admin:
        await install(admin, ("farmjobs",), SystemClock())
    async with cluster_on(consul_dev) as cluster:
        found = Jobs(api, namespace, cluster, consul_dev, connect)
        try:
            await found.farm("first")
            yield found
        finally:
            await found.close()


async def test_a_job_is_claimed_gets_its_pods_and_succeeds(jobs: Jobs) -> None:
    jobs.create("bert", {"Worker": {"replicas": 3}})
    await jobs.until("three pods", lambda: set(jobs.pods()) == {f"bert-worker-{i}" for i in range(3)})
    assert jobs.server.ask("GET", SERVICES.path(jobs.namespace, "bert"))["spec"]["clusterIP"] == "None"
    for pod in jobs.pods():
        jobs.play(pod, RUNNING)
    await jobs.until("a job that runs", lambda: "Running" in jobs.states("bert"))
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("bert"))
    status = jobs.job("bert")["status"]
    assert status["completionTime"] >= status["startTime"]
    assert status["claim"]
    assert jobs.states("bert") == {"Created", "Succeeded"}


async def test_a_failed_member_is_tried_again_and_counted_once(jobs: Jobs) -> None:
    jobs.create("retry", {"Worker": {"replicas": 2, "restartPolicy": "ExitCode"}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    first = jobs.pods()["retry-worker-1"]["metadata"]["uid"]
    jobs.play("retry-worker-1", failed(137))

    def replaced() -> bool:
        pod = jobs.pods().get("retry-worker-1")
        return pod is not None and pod["metadata"]["uid"] != first

    await jobs.until("a second attempt", replaced)
    assert jobs.pods()["retry-worker-1"]["metadata"]["annotations"]["farmd.io/attempt"] == "1"
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("retry"))
    assert jobs.job("retry")["status"]["restarts"] == 1


async def test_a_job_fails_for_good_with_the_code_that_says_so(jobs: Jobs) -> None:
    jobs.create("bad", {"Worker": {"replicas": 1, "restartPolicy": "ExitCode"}})
    await jobs.until("a pod", lambda: len(jobs.pods()) == 1)
    jobs.play("bad-worker-0", failed(1))
    await jobs.until("a job that failed", lambda: "Failed" in jobs.states("bad"))
    assert list(jobs.pods()) == ["bad-worker-0"]


async def test_a_template_that_the_server_refuses_fails_the_job_with_its_words(jobs: Jobs) -> None:
    job = {"template": {"spec": {"containers": [{"name": "No Name", "image": "none"}]}}}
    jobs.create("refused", {"Worker": job})
    await jobs.until("a job that failed", lambda: "Failed" in jobs.states("refused"))
    (condition,) = (one for one in jobs.job("refused")["status"]["conditions"] if one["type"] == "Failed")
    assert condition["reason"] == "JobFailedValidation"
    assert "spec.containers[0].name" in condition["message"]
    assert not jobs.pods()


async def test_another_farm_finishes_what_one_began(jobs: Jobs) -> None:
    jobs.create("handed", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    uids = {name: pod["metadata"]["uid"] for name, pod in jobs.pods().items()}
    claim = jobs.job("handed")["status"]["claim"]
    await jobs.stop("first")
    await jobs.farm("second")
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("handed"))
    assert {name: pod["metadata"]["uid"] for name, pod in jobs.pods().items()} == uids
    assert jobs.job("handed")["status"]["claim"] != claim


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(jobs: Jobs) -> None:
    jobs.create("rests", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    jobs.server.patch(JOBS.path(jobs.namespace, "rests"), {"spec": {"runPolicy": {"suspend": True}}})
    await jobs.until("no pods", lambda: not jobs.pods() and "Suspended" in jobs.states("rests"))
    jobs.server.patch(JOBS.path(jobs.namespace, "rests"), {"spec": {"runPolicy": {"suspend": False}}})
    await jobs.until("pods again", lambda: len(jobs.pods()) == 2)


async def test_a_finished_job_is_deleted_when_its_time_is_over(jobs: Jobs) -> None:
    jobs.create("short", {"Worker": {"replicas": 1}}, runPolicy={"ttlSecondsAfterFinished": 0})
    await jobs.until("a pod", lambda: len(jobs.pods()) == 1)
    jobs.play("short-worker-0", SUCCEEDED)
    await jobs.until("no job", lambda: not jobs.server.ask("GET", JOBS.path(jobs.namespace))["items"])


async def test_a_job_made_anew_under_its_name_waits_for_the_old_one_s_pods(jobs: Jobs) -> None:
    old = jobs.create("again", {"Worker": {"replicas": 1}})["metadata"]["uid"]
    await jobs.until("a pod", lambda: len(jobs.pods()) == 1)
    jobs.server.ask("DELETE", JOBS.path(jobs.namespace, "again"))  # no garbage collector runs here
    new = jobs.create("again", {"Worker": {"replicas": 1}})["metadata"]["uid"]

    owner = jobs.pods()["again-worker-0"]["metadata"]["ownerReferences"][0]["uid"]
    assert owner == old
    for resource in (PODS, SERVICES):
        for one in jobs.server.ask("GET", resource.path(jobs.namespace))["items"]:
            name = one["metadata"]["name"]
            jobs.server.ask("DELETE", resource.path(jobs.namespace, name), {"gracePeriodSeconds": 0})

    def ours() -> bool:
        pod = jobs.pods().get("again-worker-0")
        return pod is not None and pod["metadata"]["ownerReferences"][0]["uid"] == new

    await jobs.until("the new job's pod", ours)
