"""An engine's address where something else answers: the agent does not know what runs, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from farmd.agent.model import ContainerConfig
from farmd.agent.runtimes.container import Containers
from farmd.agent.runtimes.engine import Engine, EngineRefused
from farmd.agent.state import StateDirectory
from farmd.observe.metrics import Metrics
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
