"""What the API server refuses of a job's pods: for ever, or until somebody makes room."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.kubernetes.objects import PODS, Resource
from tests.fleet import eventually
from tests.kubernetes.farmjobs import SUCCEEDED, Jobs
from tests.kubernetes.job_people import Run

pytestmark = pytest.mark.xdist_group("kubernetes")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


def quota(jobs: Jobs, pods: int, used: int = 0) -> None:
    """Allow so many pods. The status is what Kubernetes' own controller would write."""
    amounts = {"hard": {"pods": str(pods)}, "used": {"pods": str(used)}}
    path = QUOTAS.path(jobs.namespace, "few", "status")
    jobs.server.patch(path, {"spec": {"hard": amounts["hard"]}, "status": amounts})


async def test_a_full_quota_blocks_a_job_until_it_is_raised(jobs: Jobs, farmctl: Run) -> None:
    body: dict[str, Any] = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    jobs.server.ask("POST", QUOTAS.path(jobs.namespace), body)
    quota(jobs, 1)
    jobs.create("bert", {"Worker": {"replicas": 2}})
    name = f"{jobs.namespace}/bert"
    await jobs.until("one of two pods", lambda: len(jobs.pods()) == 1)

    text = ""

    async def explained() -> bool:
        nonlocal text
        text = (await farmctl("job", "explain", name)).out
        return "exceeded quota: few" in text

    await eventually(explained, what="the quota as the reason")
    assert f"{name} is blocked: " in text
    assert "Worker: 1 of 2 slots have no pod" in text
    assert "blocked" in (await farmctl("job", "list")).out
    quota(jobs, 2, used=1)
    await jobs.until("both pods", lambda: len(jobs.pods()) == 2)
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("bert"))
    assert (await farmctl("job", "explain", name)).out == f"{name} is succeeded\n"


async def test_other_namespaces_go_on_while_the_quota_of_one_is_full(unclaimed: Jobs) -> None:
    jobs = unclaimed
    jobs.beside = (jobs.server.namespace(f"{jobs.namespace}-beside"),)
    jobs.server.ask("POST", QUOTAS.path(jobs.namespace), {"metadata": {"name": "few"}})
    quota(jobs, 0)
    await jobs.farm("first")
    for number in range(3):
        jobs.create(f"full-{number}", {"Worker": {"replicas": 40}})
    await jobs.until_status("exceeded quota: few")
    body = jobs.job("full-0")
    free = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": {"name": "free"}}
    types = {"Worker": body["spec"][jobs.types]["Worker"] | {"replicas": 5}}
    jobs.server.ask("POST", jobs.resource.path(*jobs.beside), free | {"spec": {jobs.types: types}})

    def pods() -> int:
        return len(jobs.server.ask("GET", PODS.path(*jobs.beside))["items"])

    await jobs.until("all pods of the other namespace", lambda: pods() == 5)
    assert not jobs.pods()


async def test_a_template_that_the_server_refuses_is_not_tried_again(jobs: Jobs, farmctl: Run) -> None:
    wrong = {"template": {"spec": {"containers": [{"name": "No Name", "image": "none"}]}}}
    jobs.create("wrong", {"Worker": wrong})
    await jobs.until("a job that failed", lambda: "Failed" in jobs.states("wrong"))
    version = jobs.job("wrong")["metadata"]["resourceVersion"]
    waited = await farmctl("job", "describe", f"{jobs.namespace}/wrong")
    assert "spec.containers[0].name: Invalid value" in waited.out
    history = await farmctl("audit", "list", "--item", f"job/{jobs.namespace}/wrong", "-o", "json")
    assert [each["after"]["create"] for each in history.json["items"]] == [1]
    assert jobs.job("wrong")["metadata"]["resourceVersion"] == version
