"""An agent that is killed in the middle of a start: the next one finishes it, and nothing runs twice."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store import codec
from store.reality import Reality
from tests.agents import AgentProcess, Agents, agents_on
from tests.engine import IMAGE, PodmanEngine
from tests.farmctl import Farmctl, Result
from tests.fleet import eventually, farm_on, in_time
from tests.proxy import Proxy
from tests.proxy_holds import Hold, Seen, transactions

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.slow]

KINDS = ("rcs", "daemonsets", "deployments", "rollouts", "nodes")
SERVICE = """\
name: shop
services:
  web:
    image: {image}
    pull_policy: never
    command: {command}
    volumes: ["{shared}:{shared}"]
    x-farmd: {{min_healthy_time: 0.2}}
"""
CONTROLLER = """\
name: web
replicas: 1
min_healthy_time: 200ms
rollout: {{minimum: 0}}
pod: {{id: web, command: {command}}}
"""


@dataclass
class Machine:
    """One node, whose first agent reaches Consul and the engine through proxies."""

    rig: Agents
    farmctl: Farmctl
    folder: Path
    settings: dict[str, str]
    consul: Proxy
    docker: Proxy

    def agent(self) -> AgentProcess:
        return AgentProcess(self.rig, **self.settings)

    def mortal(self) -> AgentProcess:
        ways = {
            "CONSUL_HTTP_ADDR": self.consul.address,
            "FARMD_AGENT__ENGINE": f"http://{self.docker.address}",
        }
        return AgentProcess(self.rig, **{**self.settings, **ways})

    async def bring(self, text: str, version: int, *words: str) -> Result:
        """Ask for another version of the pod, which writes a line and stays, and wait for it."""
        shared, file = self.folder / "shared", self.folder / "file.yaml"
        command = json.dumps(
            ["/bin/sh", "-c", f"echo {version} >> {shared}/runs; trap 'exit 0' TERM; sleep 1000 & wait"]
        )
        file.write_text(text.format(image=IMAGE, command=command, shared=shared))
        return await asyncio.to_thread(self.farmctl, *words, "-f", str(file))

    async def ready(self) -> bool:
        """Whether the agent is there and knows its engine."""
        present = await self.rig.presence()
        return present is not None and "runtime.container" in present[0].features

    async def alone(self) -> bool:
        """Whether the node says of one pod alone, which runs."""
        return [each.phase for each in (await self.rig.realities()).values()] == ["running"]

    def runs(self) -> list[str]:
        """The version of each start, in their order."""
        return (self.folder / "shared" / "runs").read_text().split()


@pytest.fixture
async def machine(consul_dev: str, tmp_path: Path, engine: PodmanEngine) -> AsyncIterator[Machine]:
    (tmp_path / "shared").mkdir()
    settings = {"FARMD_AGENT__ENGINE": engine.url, "FARMD_AGENT__ALLOW": f"processes,{tmp_path}/shared"}
    async with (
        agents_on(consul_dev, tmp_path) as rig,
        farm_on(rig.client, "farm-1", keys=rig.keys, kinds=KINDS),
        Proxy(consul_dev) as consul,
        Proxy(engine.url) as docker,
    ):
        yield Machine(rig, Farmctl(consul_dev, rig.keys.prefix), tmp_path, settings, consul, docker)


def made(seen: Seen) -> bool:
    """Matches the request that makes a container."""
    return seen.method == "POST" and seen.path.endswith("/containers/create")


def started(seen: Seen) -> bool:
    """Matches the request that starts a container."""
    return seen.method == "POST" and seen.path.endswith("/start")


def told(seen: Seen) -> bool:
    """Matches the agent's word that a pod runs."""
    if not transactions(seen):
        return False
    written = [
        each["KV"] for each in json.loads(seen.body) if "/reality/" in each.get("KV", {}).get("Key", "")
    ]
    values = [base64.b64decode(each["Value"]) for each in written if each.get("Value")]
    return any(codec.decode(Reality, value, "reality").phase == "running" for value in values)


async def falls(machine: Machine, mortal: AgentProcess, hold: Hold, coming: asyncio.Task[Result]) -> Result:
    """The agent is killed at what is held, and the next one comes; what was asked for comes nevertheless."""
    await in_time(hold.reached.wait())
    await mortal.end(signal.SIGKILL)
    hold.drop()
    async with machine.agent():
        result = await in_time(coming)
        await eventually(machine.alone, what="one pod alone")
        return result


@pytest.mark.parametrize(
    ("moment", "answer"),
    [(made, True), (started, False), (started, True), (told, False)],
)
async def test_r26_a_deployed_container_is_started_once_though_the_agent_is_killed_meanwhile(
    machine: Machine, engine: PodmanEngine, moment: object, *, answer: bool
) -> None:
    words = ("deploy", "-y")
    async with machine.mortal() as mortal:
        await eventually(machine.ready, what="the agent with its engine")
        first = await machine.bring(SERVICE, 1, *words)
        assert first.code == 0, first
        proxy = machine.consul if moment is told else machine.docker
        hold = proxy.hold(moment, answer=answer)  # type: ignore[arg-type]
        result = await falls(machine, mortal, hold, asyncio.create_task(machine.bring(SERVICE, 2, *words)))
        assert result.code == 0, result
    assert machine.runs() == ["1", "2"]
    assert engine.names() == ["farmd..n1..web..1"]


@pytest.mark.parametrize("answer", [False, True])
async def test_r26_a_rolled_out_process_is_started_once_though_the_agent_is_killed_meanwhile(
    machine: Machine, *, answer: bool
) -> None:
    async with machine.mortal() as mortal:
        await eventually(machine.ready, what="the agent with its engine")
        first = await machine.bring(CONTROLLER, 1, "rc", "create", "--wait")
        assert first.code == 0, first
        hold = machine.consul.hold(told, answer=answer)
        result = await falls(
            machine, mortal, hold,
            asyncio.create_task(machine.bring(CONTROLLER, 2, "rc", "update", "--wait", "-y")),
        )  # fmt: skip
        assert result.code == 0, result
    assert machine.runs() == ["1", "2"]
