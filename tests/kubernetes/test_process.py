"""``farmd run`` as a process: a kubeconfig turns jobs in Kubernetes on; a bad one is one line."""

from __future__ import annotations

import asyncio

import pytest

from tests.kubernetes.farmjobs import SUCCEEDED, Jobs
from tests.processes import Program

pytestmark = pytest.mark.xdist_group("kubernetes")


async def test_a_farm_with_a_kubeconfig_runs_jobs(jobs: Jobs, tmp_path) -> None:
    await jobs.stop("first")
    config = tmp_path / "kubeconfig"
    config.write_text(jobs.server.kubeconfig())
    variables = {
        "KUBECONFIG": str(config),
        "CONSUL_HTTP_ADDR": jobs.consul,
        "FARMD_STORE__PREFIX": jobs.prefix,
        "FARMD_FARM__NAME": "process",
        "FARMD_WEB__FARM_PORT": "0",
        "FARMD_KUBERNETES__NAMESPACES": jobs.namespace,
    }
    with Program("run", folder=tmp_path, **variables) as farm:
        await asyncio.to_thread(farm.wait_for, "process.ready")
        jobs.create("real", {"Worker": {"replicas": 2}})
        await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
        for pod in jobs.pods():
            jobs.play(pod, SUCCEEDED)
        await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("real"))
        assert await asyncio.to_thread(farm.ends, 15) == 0


def test_an_unusable_kubeconfig_is_one_line_and_a_bad_configuration(tmp_path, consul_dev) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text("current-context: prod\ncontexts: []\n")
    variables = {"KUBECONFIG": str(config), "CONSUL_HTTP_ADDR": consul_dev, "FARMD_WEB__FARM_PORT": "0"}
    with Program("run", folder=tmp_path, **variables) as farm:
        assert farm.ends() == 78
        (told,) = (line for line in farm.log if line["event"] == "config.invalid")
        assert told["reason"] == (
            f"{config}: current-context: found 'prod', expected one of the contexts, and there is none"
        )
