"""A real Prometheus learns from any farm what to scrape, and keeps what stopped answering."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from farmd.dev.cluster import LocalCluster
from monitoring.ask import Prometheus
from tests.farmctl import Farmctl
from tests.fleet import eventually
from tests.processes import get
from tests.prometheus import Server

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/hello.yaml"
JOBS = {"farmd-farm": "farms", "farmd-agent": "agents", "pods": "services"}


def configure(server: Server, farms: list[str]) -> None:
    """Have it ask these farms; none of the targets stands in its configuration."""
    times = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "1s")
    jobs = [
        {
            "job_name": job,
            "http_sd_configs": [
                {"url": f"{farm}/v1/targets/{what}", "refresh_interval": "1s"} for farm in farms
            ],
        }
        for job, what in JOBS.items()
    ]
    (server.folder / "prometheus.yml").write_text(json.dumps({"global": times, "scrape_configs": jobs}))


def up(prometheus: Prometheus) -> dict[str, float]:
    """Whether each target answers, by the names that it has."""
    return {
        " ".join(labels[name] for name in ("job", "instance", "farm", "node") if name in labels): value
        for labels, value in prometheus.now('up{job=~"farmd-.+"}')
    }


async def test_a_farm_tells_prometheus_of_farms_agents_and_pods_also_of_those_that_died() -> None:
    with LocalCluster(farms=2, agents=3) as cluster:
        await asyncio.to_thread(cluster.wait_ready)
        farmctl = Farmctl(cluster.store)
        await asyncio.to_thread(farmctl.ok, "rc", "create", "-f", str(EXAMPLE), "--wait")
        await asyncio.to_thread(farmctl.ok, "service", "create", "front", "--port", "http", "rc/hello")
        server = Server()
        try:
            configure(server, [cluster.url("farm-1"), cluster.url("farm-2")])
            await asyncio.to_thread(server.start)
            prometheus = Prometheus(server.url)
            everything = {
                "farmd-farm farm/farm-1 farm-1": 1.0,
                "farmd-farm farm/farm-2 farm-2": 1.0,
                "farmd-agent node/node-1 node-1": 1.0,
                "farmd-agent node/node-2 node-2": 1.0,
                "farmd-agent node/node-3 node-3": 1.0,
            }

            async def sees(wanted: dict[str, float]) -> None:
                async def so() -> bool:
                    return await asyncio.to_thread(up, prometheus) == wanted

                await eventually(so, what=f"targets {wanted}")

            await sees(everything)

            async def pods() -> bool:
                found = await asyncio.to_thread(prometheus.now, 'up{job="pods", service="front"}')
                return {labels["pod"] for labels, _ in found} == {
                    "node-1/hello",
                    "node-2/hello",
                    "node-3/hello",
                }

            await eventually(pods, what="the service's pods")
            cluster.kill("node-1", signal.SIGKILL)

            async def absent() -> bool:
                presence = f"http://{cluster.store}/v1/kv/farmd/agents/node-1"
                return (await asyncio.to_thread(get, presence))[0] == 404

            await eventually(absent, what="node-1 absent")
            await sees(everything | {"farmd-agent node/node-1 node-1": 0.0})
            status, told = await asyncio.to_thread(get, f"{cluster.url('farm-1')}/v1/targets/nonsense")
            assert (status, "expected one of farms, agents, services" in told) == (404, True)
        finally:
            server.close()
