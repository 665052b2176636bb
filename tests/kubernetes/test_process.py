"""``farmd run`` as a process: a kubeconfig turns jobs in Kubernetes on; a bad one is one line."""

from __future__ import annotations

import asyncio
import json

import pytest

from farmd.housekeeping.kind import CHORES
from tests.fleet import cluster_on, eventually
from tests.kubernetes.farmjobs import SUCCEEDED, Jobs
from tests.ports import free_ports
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
            f"{config}: current-context: found 'prod', expected one of the contexts, but the file has none"
        )


async def test_a_farm_works_on_while_no_api_server_answers(consul_dev, tmp_path) -> None:
    """What lies in Consul is kept, whatever the cluster does."""
    config = tmp_path / "kubeconfig"
    (free,) = free_ports(1)
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free}"}}],
    }
    config.write_text(json.dumps(content))
    async with cluster_on(consul_dev) as cluster:
        variables = {
            "KUBECONFIG": str(config),
            "CONSUL_HTTP_ADDR": consul_dev,
            "FARMD_STORE__PREFIX": cluster.keys.prefix,
            "FARMD_FARM__NAME": "process",
            "FARMD_WEB__FARM_PORT": "0",
        }
        with Program("run", folder=tmp_path, **variables) as farm:
            await asyncio.to_thread(farm.wait_for, "process.ready")
            chores = cluster.keys.tree("locks") + "housekeeping/"

            async def claimed() -> bool:
                return len((await cluster.client.keys(chores)).items) == len(CHORES)

            await eventually(claimed, what="the farm does the work that lies in Consul")
            assert await asyncio.to_thread(farm.ends, 15) == 0
            assert any(line["event"] == "informer.failed" for line in farm.log)
