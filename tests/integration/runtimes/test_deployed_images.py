"""A tag in a compose file, from the registry to the machines: pinned, moved, and with the registry away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from farmd.agent.http import add_routes
from tests.agents import Agents
from tests.engine import IMAGE, PodmanEngine, busybox
from tests.farmctl import Farmctl
from tests.fleet import CLOCK, eventually, farm_on
from tests.ports import free_ports
from tests.projects import Sites
from tests.registry import Registry
from tests.web_servers import serving_app

pytestmark = pytest.mark.xdist_group("containers")

KINDS = ("rcs", "daemonsets", "deployments", "nodes")


@pytest.fixture
async def sites(rig: Agents) -> AsyncIterator[Sites]:
    """A farm, and one machine whose agent answers over HTTP."""
    (port,) = free_ports(1)
    async with farm_on(rig.client, "farm-1", keys=rig.keys, kinds=KINDS) as farm:
        running, app = await rig.agent(address=f"127.0.0.1:{port}"), web.Application()
        add_routes(app, running.agent, CLOCK)
        async with serving_app(app, port):
            yield Sites(rig, farm, Farmctl(rig.address, rig.keys.prefix))


async def test_a_tag_is_deployed_as_what_it_meant_when_the_plan_was_made(
    sites: Sites, registry: Registry, engine: PodmanEngine, tmp_path: Path
) -> None:
    def tree(text: str) -> bytes:
        """An image's root folder; no two are alike."""
        return busybox() + text.encode()

    def runs() -> list[str]:
        return engine.run("ps", "--format", "{{.Names}} {{.Image}}").splitlines()

    async def gone() -> bool:
        return not any(first in each for each in runs())

    image = f"{registry.host}/team/site:1"
    first = registry.push("team/site", "1", tree("one"))
    command = '["/bin/sh", "-c", "while :; do sleep 1; done"]'
    path = tmp_path / "compose.yaml"
    path.write_text(
        f"{{name: blog, services: {{web: {{image: '{image}', command: {command},"
        " stop_grace_period: 0.2s, x-farmd: {min_healthy_time: 0.1s}}}}"
    )
    told = await sites.deployed(path)
    assert f"{image}@{first[:15]}" in told.err + told.out
    (before,) = runs()
    assert first in before

    second = registry.push("team/site", "1", tree("two"))
    told = await sites.deployed(path)
    assert f"{first[:15]} -> {second[7:15]}" in told.err + told.out
    await eventually(gone, what="the former container is gone")
    (after,) = runs()
    assert second in after

    registry.kill()
    told = await sites.deployed(path)
    assert told.out == "unchanged\n"
    assert f"{image}: stays at the digest that runs now" in told.err
    assert runs() == [after]

    registry.restart()
    path.write_text(path.read_text().replace(f"{image}'", f"{image}9', pull_policy: always"))
    refused = await sites.run("deploy", "-f", str(path), "-y")
    assert (refused.code, refused.out) == (2, "")
    assert f"has no image {image}9" in refused.err
    assert runs() == [after]


@pytest.mark.parametrize("order", ["start-first", "stop-first"])
async def test_a_failure_is_told_with_the_last_words_of_its_pod(
    sites: Sites, tmp_path: Path, order: str
) -> None:
    path = tmp_path / "compose.yaml"

    def says(script: str) -> None:
        path.write_text(
            f"{{name: blog, services: {{web: {{image: '{IMAGE}', pull_policy: never, stop_grace_period: 0.2s,"
            f" command: [/bin/sh, -c, '{script}'], x-farmd: {{min_healthy_time: 0.1s}},"
            f" deploy: {{update_config: {{order: {order}}}}}}}}}}}"
        )

    says("echo fine; while :; do sleep 1; done")
    await sites.deployed(path)
    says("echo no such table; exit 3")
    result = await sites.run("deploy", "-f", str(path), "-y")
    assert result.code == 9, result
    said = [line.partition(": ")[2] for line in result.err.splitlines() if line.startswith("n1/web~")]
    assert said, result
    assert set(said) == {"no such table"}
