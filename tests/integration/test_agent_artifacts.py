"""Artifacts on a real node: fetched from a real server before the start, once for all pods, and kept."""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import web

from farmd.agent.model import ArtifactConfig
from store.artifacts import Artifact
from store.manifests import Manifest
from tests.agents import Agents, alive, logged, shell
from tests.web_servers import serving

NODE = ArtifactConfig(allow=("local-sources",))
PROGRAM = b"#!/bin/sh\necho it is version one\nexec sleep 1000\n"
ALL = [0o444, 0o555]


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server:
    """Serves content by path, and counts what was asked; ``answer`` replaces the next answers."""

    def __init__(self, **content: bytes) -> None:
        self.content = {f"/{name}": body for name, body in content.items()}
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        body = self.content.get(request.path)
        if body is None:
            raise web.HTTPNotFound(text="what is inside nobody shall see")
        return web.Response(body=body, headers={"ETag": f'"{sha(body)[:8]}"'})


def runs(source: str, content: bytes, **fields: Any) -> Manifest:
    program = Artifact(source=source, sha256=sha(content), to="bin/app", mode=0o555)
    return shell("", command=["bin/app"], artifacts=[program], **fields)


async def test_a_pod_runs_the_program_that_was_fetched_for_it_and_two_pods_share_it(rig: Agents) -> None:
    server = Server(app=PROGRAM)
    async with serving(server.answer) as address:
        running = await rig.agent(artifacts=NODE)
        pod = runs(f"{address}/app", PROGRAM)
        await rig.want(pod)
        await rig.until_running(pod)
        await logged(running, "it is version one")
        await rig.want(pod, instance="web~2")
        await rig.until_running(pod, instance="web~2")
    assert server.asked == ["/app"]
    places = [running.state.work(name) / "bin" / "app" for name in ("web", "web~2")]
    assert places[0].samefile(places[1])


async def test_a_wrong_checksum_keeps_the_former_version_and_nothing_of_the_content(rig: Agents) -> None:
    server = Server(app=PROGRAM, bad=b"something else")
    async with serving(server.answer) as address:
        running = await rig.agent(artifacts=NODE)
        pod = runs(f"{address}/app", PROGRAM)
        await rig.want(pod)
        before = await rig.until_running(pod)
        await rig.want(runs(f"{address}/bad", b"what was promised"))
        told = await rig.until(lambda r: "sha256" in r.reason)
    expected = f"found sha256 {sha(b'something else')[:12]}…, expected {sha(b'what was promised')[:12]}…"
    assert f"artifacts[0]: {address}/bad: {expected}" in told.reason
    assert told.pid == before.pid
    assert alive(before)
    files = [each.name for each in (running.state.root / "artifacts").rglob("*") if each.is_file()]
    assert files == ["file-555"]
