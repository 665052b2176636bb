"""farmctl deploys and waits: its exit codes, its lines in a pipe, its picture on a terminal, and ^C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from store import codec
from store.deployments import Deployment
from store.nodes import Agent
from store.services import Service
from tests.farmctl import Farmctl, Result
from tests.fleet import Cluster, RunningFarm, cluster_on, eventually, start_farm
from tests.obedient import Obedient, obedient

KINDS = ("rcs", "daemonsets", "deployments")


class Shop:
    """A project's file, and somebody at a prompt; farm and agents go on while a command runs."""

    def __init__(self, cluster: Cluster, agents: Obedient, address: str, folder: Path) -> None:
        self.cluster = cluster
        self.agents = agents
        self.farmctl = Farmctl(address, cluster.keys.prefix)
        self.file = folder / "compose.yaml"
        self.farm: RunningFarm | None = None

    async def starts(self) -> None:
        """A farm begins to work."""
        cluster = self.cluster
        self.farm = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS)

    async def stops(self) -> None:
        """No farm works any more."""
        if self.farm is not None:
            await self.farm.close()
        self.farm = None

        async def none() -> bool:
            return not await self.cluster.entries(self.cluster.keys.tree("farms"))

        await eventually(none, what="no farm")

    def web(self, version: str, failure_action: str = "rollback") -> None:
        """Say that there are two pods of this version."""
        self.file.write_text(
            f"name: shop\nservices:\n  web:\n    image: web@sha256:{version * 64}\n"
            f"    deploy:\n      replicas: 2\n      update_config: {{failure_action: {failure_action}}}\n"
            f"    x-farmd: {{min_healthy_time: 0.2}}\n"
        )

    async def run(self, *words: str) -> Result:
        return await asyncio.to_thread(self.farmctl, *words)

    async def deploy(self, *words: str) -> Result:
        return await self.run("deploy", "-f", str(self.file), "-y", *words)

    async def completed(self, *words: str) -> list[str]:
        """What bash is offered for the last of these words."""
        line = " ".join(["farmctl", *words])
        more = {"_FARMCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        found = await asyncio.to_thread(replace(self.farmctl, variables=more))
        return [line.partition(",")[2] for line in found.out.splitlines()]

    async def services(self) -> dict[str, Service]:
        found = await self.cluster.entries(self.cluster.keys.tree("services"))
        return {each.name: each for each in (codec.decode(Service, e.value, key) for key, e in found.items())}

    async def deployments(self) -> list[Deployment]:
        found = await self.cluster.entries(self.cluster.keys.tree("deployments"))
        return [codec.decode(Deployment, entry.value, key) for key, entry in found.items()]

    async def broken_from_now(self) -> None:
        """Let the pods of what a deployment wants fail their check from now on."""
        (deployment,) = await self.deployments()
        self.agents.broken |= {goal.wanted.manifest for goal in deployment.goals if goal.wanted}


@pytest.fixture
async def shop(consul_dev: str, tmp_path: Path) -> AsyncIterator[Shop]:
    async with cluster_on(consul_dev) as cluster, obedient(cluster) as agents:
        await cluster.add_nodes({"m1": {}, "m2": {}}, "runtime.container")
        made = Shop(cluster, agents, consul_dev, tmp_path)
        await made.starts()
        yield made
        await made.stops()


@asynccontextmanager
async def logs_of(shop: Shop, text: str) -> AsyncIterator[None]:
    """The agents of both machines answer that all pods wrote this."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/v1/pods/{pod}/logs", answer)
    async with TestServer(app) as server:
        for name in ("m1", "m2"):
            said = Agent(
                node=name, version="1", features=["runtime.container"], address=f"127.0.0.1:{server.port}"
            )
            await shop.cluster.put(shop.cluster.keys.agent(name), said)
        yield


async def test_a_deploy_in_a_pipe_ends_with_its_services_released(shop: Shop) -> None:
    shop.web("1")
    result = await shop.deploy()
    assert result.code == 0, result
    lines = [line for line in result.err.splitlines() if line.startswith("service/web: ")]
    assert len(lines) == len(dict.fromkeys(lines))
    assert not any("\x1b" in line for line in result.err.splitlines())
    assert result.out.endswith(" done\n")
    web = (await shop.services())["web"]
    assert (web.revision, web.deployment, [each.result for each in web.history]) == (1, "", ["done"])
    assert await shop.deployments() == []
    assert (await shop.run("service", "list")).out.splitlines()[1].split()[3] == "2/2"
    again = await shop.deploy()
    assert (again.code, again.out) == (0, "unchanged\n")


async def test_a_change_comes_to_all_pods(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    shop.web("2")
    result = await shop.deploy()
    assert result.code == 0, result
    web = (await shop.services())["web"]
    assert (web.revision, web.version is not None and web.version.image) == (2, f"web@sha256:{'2' * 64}")
    assert web.version is not None
    assert {each.manifest for each in (await shop.cluster.intents()).values()} == {web.version.manifest}


async def test_a_version_that_fails_exits_9_with_the_reason_and_the_old_one_back(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    good = (await shop.services())["web"].version
    shop.web("2")
    async with logs_of(shop, "no such table\n"):
        waiting = asyncio.create_task(shop.deploy())
        await eventually(shop.deployments, what="the deployment")
        await shop.broken_from_now()
        result = await waiting
    assert result.code == 9, result
    assert "was rolled back: web: " in result.err
    assert "/web~1: no such table\n" in result.err
    web = (await shop.services())["web"]
    assert (web.version, web.history[0].result) == (good, "reverted")
    assert good is not None
    assert {intent.manifest for intent in (await shop.cluster.intents()).values()} == {good.manifest}


async def test_a_version_that_fails_and_pauses_ends_the_wait_with_the_reason(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    shop.web("2", failure_action="pause")
    waiting = asyncio.create_task(shop.deploy())
    await eventually(shop.deployments, what="the deployment")
    await shop.broken_from_now()
    result = await waiting
    assert result.code == 9, result
    (deployment,) = await shop.deployments()
    assert f"deployment '{deployment.name}' waits for a person: web: " in result.err
    assert f"farmctl deployment resume|rollback {deployment.name}" in result.err
    back = await shop.run("deployment", "rollback", deployment.name, "-y", "--wait")
    assert back.code == 0, back
    assert await shop.deployments() == []


async def test_a_deploy_that_lasts_too_long_exits_8_and_goes_on(shop: Shop) -> None:
    shop.agents.deaf = {"m1", "m2"}
    shop.web("1")
    result = await shop.deploy("--timeout", "8s")
    assert (result.code, "is not over after 8 s: web 0/2 healthy" in result.err) == (8, True), result
    shop.agents.deaf = set()

    async def over() -> bool:
        return not await shop.deployments()

    await eventually(over, what="the end of the deployment")
    assert (await shop.services())["web"].revision == 1


async def test_an_interrupt_on_a_terminal_leaves_it_going_and_says_so(shop: Shop) -> None:
    shop.agents.deaf = {"m1", "m2"}
    shop.web("1")
    words = ("deploy", "-f", str(shop.file))
    result = await asyncio.to_thread(
        lambda: shop.farmctl.on_terminal(*words, answer="y\n", until="0/2 healthy")
    )
    assert result.code == 130, result
    (deployment,) = await shop.deployments()
    assert f"continues without this wait; farmctl deployment status {deployment.name}" in result.out
    status = await shop.run("deployment", "status", deployment.name)
    assert "web  0/2 healthy" in status.out
    back = await shop.run("deployment", "rollback", deployment.name, "-y", "--wait")
    assert (back.code, back.err.splitlines()[-1]) == (0, f"deployment/{deployment.name}: rolled back"), back
    assert "the status is outdated" not in back.err
    assert await shop.services() == {}


async def test_a_terminal_that_is_closed_ends_the_wait_alone(shop: Shop) -> None:
    """The command dies of the signal, which is 129 to a shell, and the farm goes on."""
    shop.agents.deaf = {"m1", "m2"}
    shop.web("1")
    words = ("deploy", "-f", str(shop.file))
    result = await asyncio.to_thread(
        lambda: shop.farmctl.on_terminal(*words, answer="y\n", until="0/2 healthy", number=signal.SIGHUP)
    )
    assert result.code == -signal.SIGHUP, result
    (deployment,) = await shop.deployments()
    assert f"deployment {deployment.name} continues without this terminal" in result.out
    assert (deployment.ask, deployment.draft) == ("run", False)
    shop.agents.deaf = set()

    async def over() -> bool:
        return not await shop.deployments()

    await eventually(over, what="the end of the deployment")
    assert (await shop.services())["web"].revision == 1


async def test_who_waits_sees_how_far_images_are(shop: Shop) -> None:
    shop.agents.pulling = "pulling web@sha256:111: 48 of 120 MB"
    shop.web("1")
    told = "m1 pulling 48 of 120 MB, m2 pulling 48 of 120 MB"
    words = ("deploy", "-f", str(shop.file))
    result = await asyncio.to_thread(lambda: shop.farmctl.on_terminal(*words, answer="y\n", until="120 MB"))
    assert f"web  0/2 healthy; {told[:10]}" in result.out, result.out
    (deployment,) = await shop.deployments()
    assert f"; {told}" in (await shop.run("deployment", "status", deployment.name)).out
    assert "48 of 120 MB" in (await shop.run("service", "pods", "web")).out
    shop.agents.pulling = ""


async def test_a_deployed_service_goes_with_its_pods(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    result = await shop.run("service", "delete", "web", "-y")
    assert result.code == 0, result
    assert await shop.services() == {}
    assert await shop.cluster.intents() == {}
    assert await shop.cluster.entries(shop.cluster.keys.tree("rcs")) == {}


async def test_a_service_is_scaled_and_comes_back(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    assert (await shop.run("service", "scale", "web", "1", "-y")).code == 0
    assert len(await shop.cluster.intents()) == 1
    rolled = await shop.run("service", "rollback", "web", "-y")
    assert rolled.code == 0, rolled
    assert len(await shop.cluster.intents()) == 2
    assert [each.number for each in (await shop.services())["web"].history] == [3, 2, 1]


async def test_without_a_farm_it_is_written_and_said(shop: Shop) -> None:
    await shop.stops()
    shop.web("1")
    result = await shop.deploy("--no-wait")
    assert (result.code, "no farm is alive, so nothing is done yet" in result.err) == (0, True), result
    late = await shop.run("deployment", "status", (await shop.deployments())[0].name)
    assert "no farm is alive" in late.out


async def test_where_the_machines_changed_it_is_planned_anew(shop: Shop) -> None:
    """A cordoned machine takes no second pod, so its own is replaced in place, which a person has to see."""
    shop.web("1")
    await shop.deploy()
    await shop.stops()
    shop.web("2")
    waiting = asyncio.create_task(shop.deploy())
    (first,) = await eventually(shop.deployments, what="the deployment")
    await shop.run("node", "cordon", "m1")
    await shop.starts()
    result = await waiting
    assert result.code == 0, result
    assert f"deployment '{first.name}' was stale" in result.err
    assert "-/+ replace  web~0 on m1   stop-first: the machine accepts no new pods" in result.err
    assert (await shop.services())["web"].revision == 2


async def test_on_a_narrow_terminal_no_line_is_wider_than_it(shop: Shop) -> None:
    shop.agents.deaf = {"m1", "m2"}
    shop.web("1")
    await shop.deploy("--no-wait", "-q")
    (deployment,) = await shop.deployments()
    words = ("deployment", "status", deployment.name)
    narrow = replace(shop.farmctl, variables={"COLUMNS": "40"})

    async def tells() -> list[str]:
        shown = await asyncio.to_thread(narrow.on_terminal, *words)
        return shown.out.splitlines() if "0/2 healthy" in shown.out else []

    lines = await eventually(tells, what="the status")
    assert max(map(len, lines)) <= 40


async def test_on_a_narrow_terminal_the_plan_is_folded_below_its_lines(shop: Shop) -> None:
    shop.web("1")
    shop.file.write_text(shop.file.read_text() + "    x-pre_deploy: rails db:migrate --with many --words\n")
    narrow = replace(shop.farmctl, variables={"COLUMNS": "40"})
    words = ("deploy", "-f", str(shop.file))
    shown = await asyncio.to_thread(narrow.on_terminal, *words, "--dry-run")
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 40, shown.out
    assert lines[3:5] == [
        "    hook         rails db:migrate --with",
        "        many --words on m1, at most 5m",
    ]
    piped = await shop.run(*words, "--dry-run")
    assert "    hook         rails db:migrate --with many --words on m1, at most 5m\n" in piped.out


async def test_an_interrupt_at_the_question_writes_nothing(shop: Shop) -> None:
    shop.web("1")
    words = ("deploy", "-f", str(shop.file))
    result = await asyncio.to_thread(lambda: shop.farmctl.on_terminal(*words, until="[y/N]"))
    assert result.code == 130, result
    assert (await shop.deployments(), await shop.services()) == ([], {})


async def test_names_of_what_is_deployed_are_completed(shop: Shop) -> None:
    shop.agents.deaf = {"m1", "m2"}
    shop.web("1")
    await shop.deploy("--no-wait", "-q")
    (deployment,) = await shop.deployments()
    assert await shop.completed("deployment", "pause", deployment.name[:2]) == [deployment.name]
    assert await shop.completed("service", "scale", "w") == ["web"]


async def test_a_paused_deployment_gives_way_to_another_one(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    shop.agents.deaf = {"m1", "m2"}
    shop.web("2")
    await shop.deploy("--no-wait")
    (first,) = await shop.deployments()

    async def taken() -> bool:
        return "2 to change" in (await shop.run("deployment", "status", first.name)).out

    await eventually(taken, what="the beginning of the first one")
    assert (await shop.run("deployment", "pause", first.name)).code == 0
    shop.agents.deaf = set()
    shop.web("3")
    result = await shop.deploy()
    assert result.code == 0, result
    assert f"! takes web over from deployment {first.name}" in result.err

    async def over() -> bool:
        return not await shop.deployments()

    await eventually(over, what="the end of both")
    web = (await shop.services())["web"]
    assert web.version is not None
    assert web.version.image == f"web@sha256:{'3' * 64}"
    assert {each.manifest for each in (await shop.cluster.intents()).values()} == {web.version.manifest}


async def test_services_that_left_the_file_go_with_their_pods_once_all_others_are_well(shop: Shop) -> None:
    shop.web("1")
    await shop.deploy()
    shop.file.write_text(shop.file.read_text().replace("  web:", "  site:"))
    result = await shop.deploy("--prune", "--atomic")
    assert result.code == 0, result
    lines = result.err.splitlines()
    assert lines.index("service/web: removed") > lines.index("service/site: 2/2 healthy")
    assert (await shop.services()).keys() == {"site"}
    assert {pod.partition("~")[0] for _, pod in await shop.cluster.intents()} == {"site"}
