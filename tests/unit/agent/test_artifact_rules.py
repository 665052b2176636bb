"""Whom an agent asks for artifacts, as whom, and what it makes of the answers of a real server."""

from __future__ import annotations

import asyncio
import hashlib
import io
import socket
import ssl
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from farmd.agent.artifacts.cache import HOUR, Artifacts
from farmd.agent.artifacts.rules import ArtifactRegistry, Rules
from farmd.agent.errors import StartFailed
from farmd.agent.model import ArtifactConfig
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from store.artifacts import Artifact
from store.manifests import Manifest
from tests.certificates import authority, issue
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock
from tests.web_servers import Handler, serving, serving_app

OPEN = ArtifactConfig(allow=("local-sources",))


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/x",
        "http://127.0.0.1/x",
        "http://127.1/x",
        "http://2130706433/x",
        "http://0x7f.1/x",
        "http://0.0.0.0/x",
        "http://[::1]/x",
        "http://[::ffff:127.0.0.1]/x",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/x",
        "http://[fd00:ec2::254]/x",
    ],
)
def test_the_node_itself_and_its_metadata_are_asked_only_where_the_node_allows_it(url: str) -> None:
    with pytest.raises(StartFailed, match="does not list 'local-sources'"):
        Rules(ArtifactConfig()).judged(url)
    assert Rules(OPEN).judged(url) == url
    assert Rules(ArtifactConfig()).judged("https://10.0.0.1/x")


def test_only_the_hosts_that_the_node_names_are_asked_and_its_registries() -> None:
    config = ArtifactConfig(hosts=("good.example",), registries={"main": "https://other.example/builds/"})
    rules = Rules(config)
    assert rules.judged("https://good.example/x") == "https://good.example/x"
    assert rules.judged("registry://main/a/b") == "https://other.example/builds/a/b"
    with pytest.raises(StartFailed, match=r"found the host bad\.example, expected one of agent\.artifact_h"):
        rules.judged("https://bad.example/x")
    with pytest.raises(StartFailed, match=r"expected a registry of agent\.artifact_registries \(main\)"):
        rules.judged("registry://none/x")
    assert ArtifactRegistry(config.registries).features == ["registry.main"]
    assert "registry.main" in rules.features()


def test_a_file_of_the_node_is_taken_below_an_allowed_folder() -> None:
    rules = Rules(ArtifactConfig(allow=("processes", "/srv/builds")))
    assert rules.judged("file:///srv/builds/app") == "file:///srv/builds/app"
    with pytest.raises(StartFailed, match=r"below a folder of the node's agent\.allow"):
        rules.judged("file:///srv/builds2/app")


def test_credentials_go_to_their_host_by_https_and_from_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    auth = tmp_path / "auth"
    auth.write_text('["a.example"]\nbearer = "s3cret"\n["b.example:8443"]\nuser = "ci"\npassword = "pw"\n')
    auth.chmod(0o600)
    rules = Rules(ArtifactConfig(auth=str(auth)))
    assert rules.login("https://a.example/x") == {"Authorization": "Bearer s3cret"}
    assert rules.login("https://b.example:8443/x") == {"Authorization": "Basic Y2k6cHc="}
    for other in (
        "http://a.example/x",
        "https://a.example:444/x",
        "https://b.example/x",
        "https://c.example",
    ):
        assert rules.login(other) == {}
    auth.chmod(0o640)
    with pytest.raises(StartFailed, match=r"found mode 0640 .* expected 0600") as caught:
        rules.login("https://a.example/x")
    auth.write_text('["a.example"]\nbearer = s3cret\n')
    auth.chmod(0o600)
    with pytest.raises(StartFailed, match="expected TOML") as unread:
        rules.login("https://a.example/x")
    assert "s3cret" not in f"{caught.value}{unread.value}"


class Node:
    """An agent's artifacts, and what they told."""

    def __init__(self, folder: Path, config: ArtifactConfig = OPEN) -> None:
        self.clock = StillClock()
        self.state = StateDirectory(folder / "state")
        self.said: list[str] = []
        self.recorder = CountingRecorder()
        self.config = config
        with self.state.locked("n1"):
            self.artifacts = self.fresh()

    def fresh(self, **config: Any) -> Artifacts:
        """Those of the agent after a restart."""
        given = replace(self.config, **config)
        return Artifacts(
            given,
            state=self.state,
            users=Users(share=True),
            environ={},
            clock=self.clock,
            recorder=self.recorder,
        )

    async def get(self, *artifacts: Artifact, name: str = "web") -> Manifest:
        wanted = Manifest(id=name, command=["x"], artifacts=list(artifacts))
        await self.artifacts.get(wanted, self.said.append)
        return wanted

    async def why(self, *artifacts: Artifact) -> str:
        with pytest.raises(StartFailed) as caught:
            await self.get(*artifacts)
        assert "\n" not in caught.value.message
        return caught.value.message

    @property
    def kept(self) -> list[str]:
        root = self.state.root / "artifacts"
        return sorted(str(each.relative_to(root)) for each in root.rglob("*") if not each.is_dir())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.artifacts.close()


BODY = bytes(range(256)) * 8192  # 2 MiB


def file(address: str, body: bytes = BODY, **fields: Any) -> Artifact:
    digest = hashlib.sha256(body).hexdigest()
    return Artifact(**({"source": f"{address}/file", "sha256": digest, "to": "file"} | fields))


@asynccontextmanager
async def breaking(asked: list[str], folder: Path, etag: str) -> AsyncIterator[str]:
    """A server whose first answer ends in the middle, and which then goes on where it is asked to."""

    async def answer(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Range", "")
        asked.append(given)
        start = int(given.removeprefix("bytes=").rstrip("-") or 0) if request.headers.get("If-Range") else 0
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(BODY) - start
        response.headers["Content-Range"] = f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"
        if etag:
            response.headers["ETag"] = etag
        await response.prepare(request)
        if len(asked) > 1:
            await response.write(BODY[start:])
            return response
        await response.write(BODY[: len(BODY) // 2])
        while not any(each.stat().st_size for each in folder.rglob("part")):
            await asyncio.sleep(0.01)
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/file", answer)
    async with serving_app(app) as address:
        yield address


@pytest.mark.parametrize(("etag", "resumed"), [('"one"', True), ('W/"one"', False), ("", False)])
async def test_a_broken_download_goes_on_where_the_server_can_tell_that_it_is_the_same(
    node: Node, tmp_path: Path, etag: str, resumed: bool
) -> None:
    asked: list[str] = []
    async with breaking(asked, tmp_path, etag) as address:
        await node.get(file(address))
    assert len(asked) == 2
    assert asked[1].startswith("bytes=") == resumed
    assert node.kept == [f"{file('').digest}/file-444"]
    assert node.said[0].endswith("/file")


def answering(*answers: Any) -> tuple[list[str], Handler]:
    """A handler that gives these answers one after the other, and what it was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Authorization", ""))
        found = answers[min(len(asked), len(answers)) - 1]
        if isinstance(found, int):
            return web.Response(status=found, text="<p>what is inside\nnobody shall see</p>")
        return web.Response(body=found) if isinstance(found, bytes) else await found(request)

    return asked, answer


async def test_what_may_come_right_is_tried_again_and_what_cannot_is_not(node: Node) -> None:
    asked, answer = answering(503, 429, BODY)
    async with serving(answer) as address:
        await node.get(file(address))
    assert len(asked) == 3
    for status, tries in ((404, 1), (403, 1), (500, 5)):
        asked, answer = answering(status)
        async with serving(answer) as address:
            why = await node.why(file(address, b"other"))
        assert why.startswith(f"artifacts[0]: {address}/file: HTTP {status}")
        assert "nobody" not in why
        assert len(asked) == tries


async def test_who_answers_nothing_is_named_with_the_reason(node: Node) -> None:
    why = await node.why(file("http://127.0.0.1:1"))
    assert why == "artifacts[0]: http://127.0.0.1:1/file: Connection refused, in 5 tries"
    assert (await node.why(file("http://none.invalid"))).endswith(", in 5 tries")


async def test_an_endless_body_is_cut_off_and_leaves_nothing(tmp_path: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(65536))

    node = Node(tmp_path, replace(OPEN, most=3 << 20))
    for answer in (endless, bytes(4 << 20)):
        _, handler = answering(answer)
        async with serving(handler) as address:
            assert "larger than 3145728 bytes (agent.artifact_max)" in await node.why(file(address))
    assert node.kept == []
    await node.artifacts.close()


async def test_a_server_that_says_nothing_ends_in_time_and_what_it_said_stays(tmp_path: Path) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": '"one"'})
        await response.prepare(request)
        await response.write(BODY[: 1 << 20])
        await asyncio.Event().wait()
        return response

    node = Node(tmp_path, replace(OPEN, timeout=2.0))
    _, handler = answering(slow)
    async with serving(handler) as address:
        why = await node.why(file(address))
    assert why.endswith("/file: it took longer than 2 s (agent.artifact_timeout)")
    assert node.kept == [f"{file('').digest}/part", f"{file('').digest}/part.json"]
    await node.artifacts.close()


async def test_pods_that_want_the_same_at_once_wait_for_one_download(node: Node) -> None:
    asked, answer = answering(BODY)
    async with serving(answer) as address:
        program = file(address, to="bin/x", mode=0o755)
        await asyncio.gather(node.get(file(address)), node.get(program), node.get(file(address), name="b"))
    assert len(asked) == 1
    assert node.kept == [f"{file('').digest}/file-444", f"{file('').digest}/file-555"]


async def test_a_proxy_of_the_node_is_asked_for_names_that_only_it_knows(tmp_path: Path) -> None:
    asked, answer = answering(BODY)
    async with serving(answer) as address:
        node = Node(tmp_path, ArtifactConfig(proxy=address))
        await node.get(file("http://artifacts.invalid"))
        assert "local-sources" in await node.why(file("http://127.0.0.1", b"other"))
    assert len(asked) == 1
    await node.artifacts.close()


def test_a_name_that_leads_to_the_node_is_refused_when_it_is_asked() -> None:
    where = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))
    with pytest.raises(OSError, match=r"127\.0\.0\.1 is the node itself"):
        Rules(ArtifactConfig()).opened(where)


@asynccontextmanager
async def tls(folder: Path, answer: Handler) -> AsyncIterator[str]:
    """The same over HTTPS, as localhost by an authority of the test's own."""
    authority(folder)
    issue(folder, "server", "DNS:localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening, ssl_context=context).start()
    try:
        yield f"https://localhost:{listening.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def test_https_asks_for_a_known_authority_and_redirects_lose_credentials_and_never_tls(
    tmp_path: Path,
) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(request.query.get("to", str(request.url.with_path("/file"))))

    asked, answer = answering(elsewhere, BODY, elsewhere, elsewhere)
    async with tls(tmp_path, answer) as address, serving(answer) as plain:
        auth = tmp_path / "auth"
        auth.write_text(f'["{address.removeprefix("https://")}"]\nbearer = "s3cret"\n')
        auth.chmod(0o600)
        node = Node(tmp_path, replace(OPEN, ca=str(tmp_path / "ca.pem"), auth=str(auth)))
        await node.get(file(address))
        assert asked == ["Bearer s3cret"] * 2
        why = await node.why(file(address, b"other", source=f"{address}/file?to={plain}/file"))
        assert why.endswith("/file: redirected to another scheme than https")
        assert len(asked) == 3
        await node.artifacts.close()
        node = Node(tmp_path / "other")
        assert "/file: TLS: " in await node.why(file(address))
        await node.artifacts.close()


async def test_what_a_killed_agent_left_is_used_if_it_is_complete_and_removed_if_not(node: Node) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good"))
    tree = file("http://127.0.0.1:1", made.getvalue(), unpack="tar", to="app")
    folder = node.state.root / "artifacts" / tree.digest
    (folder / "new.tree-tar" / "half").mkdir(parents=True)
    (folder / "part").write_bytes(made.getvalue())
    await node.get(tree)
    assert node.kept == [f"{tree.digest}/tree-tar/good"]
    assert [each.name for each in folder.iterdir()] == ["tree-tar"]


async def test_what_no_pod_needs_goes_and_the_last_two_good_versions_stay(node: Node) -> None:
    versions = []
    for number in range(4):
        body = f"version {number}".encode()
        _, answer = answering(body)
        async with serving(answer) as address:
            versions.append(await node.get(file(address, body)))
        await node.artifacts.tidy([versions[-1]], [versions[-1]])
    assert len(node.kept) == 4
    node.artifacts = node.fresh()
    node.clock.seconds += OPEN.retention + HOUR
    await node.artifacts.tidy([versions[-1]], [])
    digests = sorted(each.artifacts[0].digest for each in versions[2:])
    assert node.kept == [f"{each}/file-444" for each in digests]
    await node.get(*versions[2].artifacts)  # its server is gone
    node.clock.seconds += OPEN.retention + HOUR
    await node.artifacts.tidy([], [])
    assert node.kept == []
