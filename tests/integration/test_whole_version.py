"""A version of a pod has its program, its settings, its secret and its files: a rollout brings all of them
to a real node, a kill of the agent in the middle loses nothing, and a revert takes all of them back.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from farmd.signing import keys as signing
from store.reality import Reality
from tests.age import files, identity, memory_folder
from tests.agents import AgentProcess, Agents, agents_on, alive
from tests.fleet import eventually, farm_on
from tests.integration.test_cli_fleet import Person
from tests.web_servers import serving

SEES = """#!/bin/sh
printf '{"program": "%s", "level": "%s", "secret": "%s", "file": "%s"}' \\
    NAME "$LEVEL" "$(cat "$FARMD_SECRETS/db")" "$(cat "$FARMD_FILES/app.conf")" > sees.new
mv sees.new sees
exec sleep 1000
"""
BALLAST = os.urandom(2 << 20)
WAIT = ("--wait", "--timeout", "150s")


def archive(name: str) -> bytes:
    """An archive with a program that writes down what it sees."""
    made = io.BytesIO()
    body = SEES.replace("NAME", name).encode()
    with tarfile.open(fileobj=made, mode="w:gz") as into:
        for path, content in (("data", BALLAST), ("bin/web", body)):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755
            into.addfile(info, io.BytesIO(content))
    return made.getvalue()


class Server:
    """Serves archives. While ``open`` is not set, it sends half of each; ``asked`` are the requests."""

    def __init__(self) -> None:
        self.content = {f"/{name}.tar.gz": archive(name) for name in ("one", "two")}
        self.asked: list[tuple[str, int]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = self.content[request.path]
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        self.asked.append((request.path, start))
        response = web.StreamResponse(status=206 if start else 200, headers={"ETag": '"1"'})
        response.content_length = len(body) - start
        response.headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        await response.prepare(request)
        half = len(body) // 2
        if start < half:
            await response.write(body[start:half])
        await self.open.wait()
        await response.write(body[max(half, start) :])
        return response


class Story:
    """A fleet of one node with its own agent, a farm, and somebody who writes versions of a controller."""

    def __init__(self, rig: Agents, person: Person, server: Server, address: str) -> None:
        self.rig, self.person, self.server, self.address = rig, person, server, address

    def file(self, name: str, **fields: Any) -> str:
        content = self.server.content[f"/{name}.tar.gz"]
        pod = {
            "id": "web",
            "command": ["app/bin/web"],
            "stop": {"grace": 1},
            "env": {"LEVEL": {"kv": "shop/level"}},
            "secrets": [{"secret": "shop/db"}],
            "files": [{"path": "app.conf", "template": "level={{ env.LEVEL }} on {{ env.FARMD_NODE }}"}],
            "artifacts": [
                {
                    "source": f"{self.address}/{name}.tar.gz",
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "unpack": "tar.gz",
                    "to": "app",
                }
            ],
        }
        return yaml.safe_dump({"name": "web", "replicas": 1, "min_healthy_time": 0, "pod": pod | fields})

    async def settings(self, level: str, secret: str) -> None:
        await self.person.ok("config", "set", "shop/level", level)
        await self.person.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin=secret)

    async def pod(self) -> Reality:
        (found,) = (await self.rig.realities("n1")).values()
        return found

    async def over(self) -> bool:
        return not (await self.person.ok("rollout", "list", "-o", "json")).json["items"]

    async def sees(self, name: str, level: str, secret: str) -> Reality:
        """The running pod, once all that it has is of this version."""
        expected = {"program": name, "level": level, "secret": secret, "file": f"level={level} on n1"}

        async def so() -> Reality | None:
            found = await self.pod()
            if found.phase != "running" or not found.pid:
                return None
            place = Path(f"/proc/{found.pid}/cwd/sees")
            return found if place.exists() and json.loads(place.read_text()) == expected else None

        return await eventually(so, what=f"a pod that sees {expected}")  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_a_signed_rollout_brings_bits_settings_secret_and_files_and_a_revert_takes_them_back(
    consul_dev: str, tmp_path: Path
) -> None:
    recipient, key = identity(tmp_path / "prod.key"), tmp_path / "alice.key"
    (tmp_path / "trust").write_text(f"alice {signing.generate(key)} rcs/* *\n")
    signs = ("--sign", str(key))
    server = Server()
    with memory_folder() as memory:
        async with agents_on(consul_dev, tmp_path) as rig, serving(server.answer) as address:
            person = Person(consul_dev, rig.keys.prefix)
            story = Story(rig, person, server, address)
            node = {
                "FARMD_AGENT__ALLOW": "processes,local-sources",
                "FARMD_AGENT__SECRET_IDENTITIES": str(tmp_path / "prod.key"),
                "FARMD_AGENT__SECRET_FOLDER": str(memory),
                "FARMD_AGENT__SIGNATURES": "enforce",
                "FARMD_AGENT__TRUST": str(tmp_path / "trust"),
            }
            async with farm_on(rig.client, keys=rig.keys, kinds=("rcs", "rollouts")):
                await person.ok("secret", "group", "create", "prod", "--recipient", recipient)
                await story.settings("info", "the-first-password")
                async with AgentProcess(rig, **node) as agent:
                    await person.ok("rc", "create", "-f", "-", *signs, *WAIT, stdin=story.file("one"))
                    one = await story.sees("one", "info", "the-first-password")
                    await story.settings("debug", "the-second-password")
                    server.open.clear()
                    await person.ok("rc", "update", "-f", "-", *signs, stdin=story.file("two"))

                    async def half() -> bool:
                        parts = list((rig.root / "n1" / "artifacts").rglob("part"))
                        return any(each.stat().st_size for each in parts)

                    await eventually(half, what="half of the second archive")
                    assert alive(one), "the former version serves until the next one is ready"
                    await agent.end(signal.SIGKILL)
                assert alive(one)
                server.open.set()
                async with AgentProcess(rig, **node):
                    two = await story.sees("two", "debug", "the-second-password")
                    assert two.pid != one.pid
                    assert not alive(one)
                    assert server.asked[-1][1] > 0, "the next agent continues the download"
                    await eventually(story.over, what="the end of the rollout")
                    server.content.clear()
                    asked = list(server.asked)
                    await person.ok("rollout", "revert", "web", "-y", *WAIT)
                    await story.sees("one", "info", "the-first-password")
                    assert server.asked == asked, "a revert needs no network"
                    await person.ok("rc", "delete", "web", "--cascade", "-y", *WAIT)

                    async def closed() -> bool:
                        return not await rig.realities("n1") and files(memory) == []

                    await eventually(closed, what="no pod, and no secret that is left")
            kept = [Path(root) / name for root, _, names in os.walk(tmp_path / "n1") for name in names]
            assert not [each for each in kept if b"-password-password" in each.read_bytes()], (
                "the secret is on no disk"
            )
