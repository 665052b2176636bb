"""Artifacts on a real node: fetched from a real server before the start, once for all pods, and kept."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from farmd.agent.model import ArtifactConfig
from farmd.agent.users import Users
from store.artifacts import Artifact
from store.manifests import Manifest, Restart
from tests.agents import AgentProcess, Agents, agents_on, alive, logged, sha_of, shell
from tests.fleet import eventually
from tests.small_disk import SmallDisk
from tests.web_servers import serving

NODE = ArtifactConfig(allow=("local-sources",))
PROGRAM = b"#!/bin/sh\necho it is version one\nexec sleep 1000\n"


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

    async def nothing_of_it() -> bool:
        # The agent tries again, and has a part while it does.
        kept = [each.name for each in (running.state.root / "artifacts").rglob("*") if each.is_file()]
        return kept == ["file-555"]

    await eventually(nothing_of_it, what="the promised file alone is kept")


async def test_a_revert_needs_no_network_and_shows_the_former_files(rig: Agents) -> None:
    server = Server(one=PROGRAM, two=PROGRAM.replace(b"one", b"two"))
    running = await rig.agent(artifacts=NODE)
    async with serving(server.answer) as address:
        one = runs(f"{address}/one", PROGRAM)
        two = runs(f"{address}/two", server.content["/two"])
        for pod in (one, two):
            await rig.want(pod)
            await rig.until_running(pod)
        await logged(running, "it is version two")
    await rig.want(one)
    await rig.until_running(one)
    assert (running.state.work("web") / "bin/app").read_bytes() == PROGRAM
    views = running.state.directory("web") / "artifacts"
    assert len(list(views.iterdir())) == 1
    await rig.want(shell("exec sleep 1000"))
    await rig.until(lambda r: r.phase == "running" and r.manifest != sha_of(one))
    assert list(views.iterdir()) == []
    assert not (running.state.work("web") / "bin").is_symlink()


async def test_a_workload_cannot_lead_the_agent_elsewhere_by_what_it_puts_in_the_place(
    rig: Agents, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "app").write_text("not the workload's")
    server = Server(one=b"1", two=b"22")
    async with serving(server.answer) as address:
        running = await rig.agent(artifacts=NODE)
        script = f"rm bin; ln -s {victim} bin; echo exchanged; exec sleep 1000"
        for name in ("one", "two"):
            content = server.content[f"/{name}"]
            kept = Artifact(source=f"{address}/{name}", sha256=sha(content), to="bin/app")
            pod = shell(script, artifacts=[kept], env={"VERSION": name})
            await rig.want(pod)
            await rig.until_running(pod)
            await logged(running, "exchanged")
        await rig.unwant()
        await rig.until_gone()
    assert (victim / "app").read_text() == "not the workload's"


async def test_an_archive_that_leaves_its_folder_is_the_reason_of_its_pod_alone(rig: Agents) -> None:
    bad, good = io.BytesIO(), io.BytesIO()
    for into, name in ((bad, "../../../escaped"), (good, "./bin/app")):
        with tarfile.open(fileobj=into, mode="w:gz") as archive:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(PROGRAM), 0o755
            archive.addfile(info, io.BytesIO(PROGRAM))
    server = Server(bad=bad.getvalue(), good=good.getvalue())
    async with serving(server.answer) as address:
        running = await rig.agent(artifacts=NODE)
        for name in ("bad", "good"):
            content = server.content[f"/{name}"]
            tree = Artifact(source=f"{address}/{name}", sha256=sha(content), unpack="tar.gz", to="app")
            pod = shell("", command=["app/bin/app"], artifacts=[tree])
            await rig.want(pod, instance="web" if name == "good" else name)
        told = await rig.until(lambda r: r.phase == "failed", instance="bad")
        await rig.until(lambda r: r.phase == "running")
        await logged(running, "it is version one")
    assert f"{address}/bad: '../../../escaped' leaves the folder that it is unpacked into" in told.reason
    assert list(rig.root.rglob("escaped")) == []
    assert sorted(each.name for each in (running.state.root / "artifacts").rglob("tree*")) == ["tree-tar.gz"]


async def test_a_download_for_two_pods_goes_on_after_a_kill_of_the_agent(rig: Agents) -> None:
    body = PROGRAM + b"#" * (3 << 20)
    asked: list[str] = []

    async def half(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Range", ""))
        start = int(asked[-1].removeprefix("bytes=").rstrip("-") or 0)
        response = web.StreamResponse(status=206 if start else 200, headers={"ETag": '"1"'})
        response.content_length = len(body) - start
        response.headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        await response.prepare(request)
        if start:
            await response.write(body[start:])
            return response
        await response.write(body[: 2 << 20])
        await asyncio.Event().wait()
        return response

    async with serving(half) as address:
        pod = runs(f"{address}/app", body)
        part = rig.root / "n1" / "artifacts" / sha(body) / "part"
        allow = {"FARMD_AGENT__ALLOW": "processes,local-sources"}
        async with AgentProcess(rig, **allow) as agent:
            for instance in ("web", "web~2"):
                await rig.want(pod, instance=instance)

            async def begun() -> bool:
                return part.exists() and part.stat().st_size > 0

            await eventually(begun, what="a part of the file")
            await agent.end(signal.SIGKILL)
        assert not (part.parent / "file-555").exists()
        async with AgentProcess(rig, **allow):
            for instance in ("web", "web~2"):
                await rig.until_running(pod, instance=instance)
    assert len(asked) == 2
    assert asked[0] == ""
    assert int(asked[1].removeprefix("bytes=").rstrip("-")) > 0
    assert [each.name for each in part.parent.iterdir()] == ["file-555"]


async def test_a_disk_that_is_full_refuses_the_artifact_and_other_pods_start(
    consul_dev: str, tmp_path: Path
) -> None:
    (tmp_path / "n1").mkdir()
    server = Server(big=bytes(16 << 20))
    with SmallDisk(tmp_path / "n1", megabytes=12) as disk:
        async with agents_on(consul_dev, disk.path.parent) as rig, serving(server.answer) as address:
            running = await rig.agent(artifacts=NODE)
            big = runs(f"{address}/big", server.content["/big"], restart=Restart(initial=600))
            await rig.want(big, instance="big")
            told = await rig.until(lambda r: r.phase == "failed", instance="big")
            assert f"artifacts[0]: {address}/big: disk full: " in told.reason
            other = shell("exec sleep 1000")
            await rig.want(other)
            await rig.until_running(other)
            assert list((running.state.root / "artifacts").rglob("part*")) == []


async def test_what_the_node_does_not_take_is_refused_before_anything_is_stopped(rig: Agents) -> None:
    await rig.agent(artifacts=ArtifactConfig(registries={"main": "https://a.example"}))
    running = shell("exec sleep 1000")
    await rig.want(running)
    before = await rig.until_running(running)
    for source, words in (
        ("http://127.0.0.1:1/x", "agent.allow of this node does not list 'local-sources'"),
        ("registry://none/x", "expected a registry of agent.artifact_registries (main)"),
        ("file:///etc/shadow", "expected a file below a folder of the node's agent.allow"),
    ):
        await rig.want(runs(source, b""))
        told = await rig.until(lambda r, words=words: words in r.reason)  # type: ignore[misc]
        assert told.pid == before.pid
    found = await rig.presence()
    assert found is not None
    assert {"artifacts.1", "registry.main"} <= set(found[0].features)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts pods of other users")
async def test_a_pod_of_another_user_runs_its_artifact_and_gets_no_file_that_is_not_that_users(
    consul_dev: str,
) -> None:
    with tempfile.TemporaryDirectory() as made:
        builds = Path(made) / "builds"
        for folder in (Path(made), builds):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        (builds / "app").write_bytes(PROGRAM)
        (builds / "key").write_bytes(b"of root")
        (builds / "key").chmod(0o600)
        async with agents_on(consul_dev, Path(made)) as rig:
            running = await rig.agent(
                artifacts=ArtifactConfig(allow=(str(builds),)), users=Users(default="nobody")
            )
            found = await rig.presence()
            assert found is not None
            assert f"allow.{builds}" in found[0].features
            pod = runs(f"file://{builds}/app", PROGRAM)
            await rig.want(pod)
            await rig.until_running(pod)
            await logged(running, "it is version one")
            await rig.want(runs(f"file://{builds}/key", b"of root"), instance="key")
            told = await rig.until(lambda r: r.phase == "failed", instance="key")
            assert f"{builds}/key: Permission denied for the user that the pod runs as" in told.reason
            kept = [each.name for each in (running.state.root / "artifacts").rglob("*") if each.is_file()]
            assert kept.count("file-555") == 1
