"""What one peer may hold of a process's HTTP: it is bounded in number, and each connection in time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.web import app as routes
from farmd.web import connections, server
from tests.certificates import authority, caller, issue
from tests.fleet import CLOCK, LIMIT, eventually
from tests.recorders import CountingRecorder

CLOSED = connections.CLOSED


class Served(NamedTuple):
    port: int
    recorder: CountingRecorder
    stack: contextlib.ExitStack
    entered: list[str]

    async def opened(self, sent: bytes = b"", tls: ssl.SSLContext | None = None) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.stack.callback(writer.close)
        writer.write(sent)
        return Peer(reader, writer)

    async def counted(self, reason: str) -> None:
        async def there() -> int:
            return self.recorder.counts[(CLOSED, reason)]

        await eventually(there, what=f"a connection ended as {reason}")


class Peer(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> bytes:
        async with asyncio.timeout(LIMIT):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def served(tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """The routes of every process, one that waits, one that takes a body, and a large answer."""
    recorder, waits, entered = CountingRecorder(), asyncio.Event(), list[str]()
    metrics = Metrics(CollectorRegistry())
    progress = Progress(CLOCK, metrics)
    app = routes.build_app(routes.Subject(metrics.registry, progress, lambda: "", dict, lambda: None))

    async def waiting(request: web.Request) -> web.Response:
        entered.append(request.path)
        await waits.wait()
        return web.Response(text="at last")

    async def taking(request: web.Request) -> web.Response:
        return web.Response(text=(await request.read()).decode())

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(64 << 20))

    app.router.add_get("/waiting", waiting)
    app.router.add_post("/taking", taking)
    app.router.add_get("/large", large)
    with server.listening("127.0.0.1", 0) as sock, contextlib.ExitStack() as stack:
        async with server.serving(app, sock, recorder, tls=tls):
            yield Served(sock.getsockname()[1], recorder, stack, entered)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections at once."""
    monkeypatch.setattr(connections, "most", lambda: 2)


def asking(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode()


async def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(few: None) -> None:
    async with served() as here:
        first, second = await here.opened(), await here.opened(b"GET /health HTTP/1.1\r\nHo")
        third = await here.opened(asking("/health", "Connection: close\r\n"))
        assert b"200 OK" in await third.answer()
        assert await first.answer() == b""
        second.writer.write(b"st: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await second.answer()
        assert here.recorder.counts[(CLOSED, "idle")] == 1


async def test_no_request_that_is_handled_makes_room(few: None) -> None:
    async with served() as here:
        busy = [await here.opened(asking("/waiting")) for _ in range(2)]

        async def handled() -> bool:
            return len(here.entered) == 2

        await eventually(handled, what="two requests that are handled")
        assert await (await here.opened()).answer() == b""
        await here.counted("full")
        assert not any(peer.reader.at_eof() for peer in busy)


async def test_a_body_that_does_not_come_holds_no_place(few: None) -> None:
    async with served() as here:
        post = asking("/taking", "Content-Length: 5\r\nExpect: 100-continue\r\n").replace(b"GET", b"POST")
        for _ in range(2):
            peer = await here.opened(post)
            async with asyncio.timeout(LIMIT):
                assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        health = await here.opened(asking("/health", "Connection: close\r\n"))
        assert b"200 OK" in await health.answer()
        peer.writer.write(b"whole")
        async with asyncio.timeout(LIMIT):
            assert b"200 OK" in await peer.reader.readuntil(b"whole")
        assert here.recorder.counts[(CLOSED, "idle")] == 1


async def test_headers_a_body_and_an_answer_that_take_too_long_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (connections, "REQUEST_SECONDS"),
        (connections, "UNREAD_SECONDS"),
        (connections, "LOOK_SECONDS"),
        (routes, "BODY_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.1)
    async with served() as here:
        slow = await here.opened(b"GET /health HTT")
        await here.opened(asking("/large"))
        body = await here.opened(asking("/taking", "Content-Length: 5\r\n").replace(b"GET", b"POST") + b"ab")
        silent = await here.opened()
        assert await slow.answer() == b""
        assert b"408 Request Timeout" in await body.answer()
        await here.counted("slow")
        await here.counted("unread")
        silent.writer.write(asking("/health", "Connection: close\r\n"))
        assert b"200 OK" in await silent.answer()


async def test_a_handshake_that_stops_halfway_ends_and_holds_no_place(
    few: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority(tmp_path)
    issue(tmp_path, "farm", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "farm.pem", tmp_path / "farm.key")
    async with served(tls) as here:
        for _ in range(5):
            await here.opened(b"\x16\x03\x01\x02")
        whole = await here.opened(asking("/health", "Connection: close\r\n"), caller(tmp_path))
        assert b"200 OK" in await whole.answer()
        assert here.recorder.counts[(CLOSED, "idle")] == 4
        monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.1)
        assert await (await here.opened(b"\x16\x03\x01\x02")).answer() == b""
        await here.counted("handshake")


async def test_one_request_makes_the_metrics_for_all_that_ask_meanwhile() -> None:
    made: list[None] = []
    registry = Metrics(CollectorRegistry()).registry
    progress = Progress(CLOCK, CountingRecorder())
    scrape = routes.Scrape(routes.Subject(registry, progress, str, dict, lambda: made.append(None)))
    bodies = await asyncio.gather(*(scrape.body() for _ in range(50)))
    assert all(b"farmd_build_info" in body for body in bodies)
    assert len(made) < 10
