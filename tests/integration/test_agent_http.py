"""What an agent tells over HTTP: its pods and their output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web as http_web

from farmd.agent.http import add_routes
from tests.agents import CLOCK, Agents, Running, sha_of, shell
from tests.fleet import eventually
from tests.ports import free_ports

SLEEPER = shell("exec sleep 1000")


async def test_pods_and_logs_over_http(rig: Agents) -> None:
    running = await rig.agent()
    talker = shell(
        "for i in 1 2 3; do echo line $i; done; while [ ! -e go ]; do sleep 0.02; done; echo more;"
        " exec sleep 1000"
    )
    await rig.want(talker)
    await rig.until_running(talker)
    async with served(running) as http:

        async def text(path: str) -> tuple[int, str]:
            async with http.get(path) as answer:
                return answer.status, await answer.text()

        async def all_lines() -> bool:
            return (await text("/v1/pods/web/logs"))[1] == "line 1\nline 2\nline 3\n"

        await eventually(all_lines, what="three lines")
        async with http.get("/v1/pods") as answer:
            body = await answer.json()
        assert body["node"] == "n1"
        assert body["pods"]["web"]["manifest"] == sha_of(talker)
        assert await text("/v1/pods/web/logs?lines=1") == (200, "line 3\n")
        assert (await text("/v1/pods/web/logs?lines=-1"))[0] == 400
        assert (await text("/v1/pods/web/logs?follow=maybe"))[0] == 400
        assert (await text("/v1/pods/other/logs"))[0] == 404
        assert (await text("/v1/pods/other/usage"))[0] == 404
        # This agent runs under no unit, so it has no groups.
        assert await text("/v1/pods/web/usage") == (200, '{"usage": null, "logs": []}')
        assert (await text("/v1/pods/..%2F..%2Fetc/logs"))[0] == 404
        async with http.get("/v1/pods/web/logs?lines=1&follow=1") as answer:
            assert await answer.content.readline() == b"line 3\n"
            (running.state.work("web") / "go").touch()
            assert await answer.content.readline() == b"more\n"
            await rig.unwant()
            assert await answer.content.read() == b""


async def test_output_is_told_by_start_and_time_over_http(rig: Agents) -> None:
    running = await rig.agent()
    waits = "trap 'printf bye; exit' TERM; echo second; while :; do sleep 0.05; done"
    twice = shell(f"exec 2>/dev/null; if [ -e again ]; then {waits}; fi; touch again; echo first; exit 1")
    await rig.want(twice)
    async with served(running) as http:

        async def text(query: str) -> tuple[int, str]:
            async with http.get(f"/v1/pods/web/logs?{query}") as answer:
                return answer.status, await answer.text()

        async def both() -> bool:
            return await text("lines=9") == (200, "first\nsecond\n")

        await rig.until_running(twice)
        await eventually(both, what="the output of two starts")
        assert await text("previous=1") == (200, "first\n")
        assert await text("since=3600&lines=1") == (200, "second\n")
        status, shown = await text("timestamps=1")
        assert status == 200
        assert [line.partition("Z ")[2] for line in shown.splitlines()] == ["first", "second"]
        for since in ("soon", "9" * 400):
            assert (await text(f"since={since}"))[0] == 400
        assert (await text("previous=1&follow=1"))[0] == 400
        async with http.get("/v1/pods/web/logs?lines=1&follow=1&timestamps=1") as answer:
            assert answer.headers["Farmd-Log-Times"] == "1"
            assert (await answer.content.readline()).endswith(b"Z second\n")
            await rig.unwant()
            assert (await answer.content.read()).endswith(b"Z bye")


async def test_the_output_of_a_removed_pod_is_told_for_a_while_also_by_the_next_agent(rig: Agents) -> None:
    first = await rig.agent()
    waits = "while :; do sleep 0.05; done"
    await rig.want(shell(f"exec 2>/dev/null; trap 'echo bye; exit 3' TERM; echo up; {waits}"))

    async def shown(running: Running, query: str = "") -> tuple[int, str, bool]:
        async with served(running) as http, http.get(f"/v1/pods/web/logs?{query}") as answer:
            return answer.status, await answer.text(), "Farmd-Log-Gone" in answer.headers

    async def up() -> bool:
        return await shown(first) == (200, "up\n", False)

    await eventually(up, what="the output")
    await rig.unwant()
    await rig.until_gone()
    assert await shown(first) == (200, "up\nbye\n", True)
    await first.close()
    second = await rig.agent()
    for query in ("", "follow=1", "since=60"):
        assert await shown(second, query) == (200, "up\nbye\n", True)
    assert (await shown(second, "previous=1"))[0] == 404
    await rig.want(SLEEPER)
    await rig.until_running(SLEEPER)
    assert await shown(second) == (200, "", False)


@asynccontextmanager
async def served(running: Running) -> AsyncIterator[aiohttp.ClientSession]:
    """The agent's HTTP routes."""
    app = http_web.Application()
    add_routes(app, running.agent, CLOCK)
    runner = http_web.AppRunner(app, shutdown_timeout=5)
    await runner.setup()
    port = free_ports(1)[0]
    await http_web.TCPSite(runner, "127.0.0.1", port).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        yield http
    await runner.cleanup()
