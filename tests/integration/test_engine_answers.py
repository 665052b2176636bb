"""An engine's address where something else answers: the agent does not know what runs, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from farmd.agent.model import ContainerConfig, Identity
from farmd.agent.runtimes.container import Containers
from farmd.agent.runtimes.engine import Engine, EngineRefused, EngineSilent
from farmd.agent.state import StateDirectory
from farmd.observe.recorder import Metrics
from store.manifests import Manifest
from tests.fleet import CLOCK
from tests.web_servers import serving


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", "<h1>It works!</h1>"),
        (200, "application/json", '{"Id": "a"}'),
        (200, "application/json", '[{"Id": "a"}]'),
        (200, "application/json", "[7]"),
        (200, "application/json", "nothing"),
        (404, "application/json", "{}"),
        (502, "text/plain", "bad\ngateway"),
    ],
)
async def test_r26_an_answer_that_no_engine_gives_tells_nothing_of_what_runs(
    tmp_path: Path, status: int, kind: str, body: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        return web.Response(status=status, content_type=kind, text=body)

    async with serving(answer) as address:
        recorder = Metrics(CollectorRegistry())
        config = ContainerConfig(engine=address)
        state = StateDirectory(tmp_path)
        containers = Containers(config, state=state, node="n1", clock=CLOCK, recorder=recorder)
        try:
            await containers.look()
            assert (containers.doubt != "", "\n" in containers.doubt) == (True, False)
            assert (list(containers.strays()), containers.features) == ([], [])
        finally:
            await containers.close()


OURS = {
    "Id": "c0ffee",
    "State": {"Status": "running", "Pid": 7},
    "Config": {
        "Labels": {
            "farmd.node": "n1", "farmd.instance": "web", "farmd.manifest": "f" * 64, "farmd.start": "s0",
            "farmd.started": "1.0", "farmd.restart": "0", "farmd.ports": "{}", "farmd.logs": "1024 1",
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "listed_again", "lives"),
    [
        (500, '{"message": "database is locked"}', True, True),
        (404, '{"message": "no such container"}', True, True),
        (200, '{"Id": "c0ffee", "State": "running", "Config": []}', True, True),
        (200, "{}", True, True),
        (404, '{"message": "no such container"}', False, False),
        (500, '{"message": "database is locked"}', False, False),
    ],
)
async def test_r26_a_container_that_is_listed_and_not_described_may_well_run(
    tmp_path: Path, status: int, body: str, listed_again: bool, lives: bool
) -> None:
    state, lists = "running", 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal lists
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        if request.path.endswith("/containers/json"):
            lists += 1
            there = lists <= 2 or listed_again
            return web.json_response([{"Id": "c0ffee", "State": state}] if there else [])
        if request.path.endswith("/json") and state == "running":
            return web.json_response(OURS)
        return web.Response(status=status, content_type="application/json", text=body)

    async with serving(answer) as address:
        config, recorder = ContainerConfig(engine=address), Metrics(CollectorRegistry())
        containers = Containers(
            config, state=StateDirectory(tmp_path), node="n1", clock=CLOCK, recorder=recorder
        )
        try:
            await containers.look()
            before = containers.find("web")
            assert (containers.doubt, before and before.handle) == ("", "c0ffee")
            state = "paused"
            await containers.look()
            assert (containers.find("web") == before, containers.doubt != "") == (lives, lives)
        finally:
            await containers.close()


async def test_r26_an_engine_that_ends_while_it_runs_a_check_tells_nothing_of_the_pod(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        if request.path.endswith("/start"):
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"Id": "e1", "ProcessConfig": {"tty": False}})

    async with serving(answer) as address:
        config, recorder = ContainerConfig(engine=address), Metrics(CollectorRegistry())
        containers = Containers(
            config, state=StateDirectory(tmp_path), node="n1", clock=CLOCK, recorder=recorder
        )
        running = Identity(instance="web", manifest="f" * 64, start="s0", started=1.0, handle="c0ffee")
        try:
            with pytest.raises(EngineSilent, match="does not answer"):
                await containers.check(running, Manifest(id="web"), ["/bin/true"])
        finally:
            await containers.close()


async def test_a_pull_without_a_registrys_name_is_of_one_tag_and_carries_its_login() -> None:
    asked: list[tuple[str, bool]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        asked.append((request.query["fromImage"], "X-Registry-Auth" in request.headers))
        return web.Response(text='{"status": "Downloading"}\r\n\r\n{"error": "denied"}\r\n')

    async with serving(answer) as address:
        engine = Engine(address)
        try:
            with pytest.raises(EngineRefused, match=r"^denied$"):
                await engine.pull("postgres", {"username": "ada", "password": "hush"}, "")
        finally:
            await engine.close()
    assert asked == [("postgres:latest", True)]


@pytest.mark.parametrize(
    ("info", "apart"),
    [
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=userns"]}, True),
        ({"SecurityOptions": ["name=rootless", "name=cgroupns"]}, True),
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"]}, False),
        ({"SecurityOptions": None}, False),
        (None, False),  # a proxy before the engine that does not pass the question on
    ],
)
async def test_an_engine_tells_whether_its_root_is_the_nodes(
    info: dict[str, Any] | None, apart: bool
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        return web.json_response(info or {"message": "forbidden"}, status=200 if info else 403)

    async with serving(answer) as address:
        engine = Engine(address)
        try:
            assert await engine.apart() is apart
        finally:
            await engine.close()
