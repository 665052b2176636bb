"""A process keeps no connection open for callers that ask nothing: each one costs it a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from farmd.web import server
from tests.recorders import CountingRecorder


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """The port of a server that soon closes what is idle, and the event that its one answer waits for."""
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)
    answered = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await answered.wait()
        return web.Response(text="at last")

    app = web.Application()
    app.router.add_get("/slow", slow)
    with server.listening("127.0.0.1", 0) as sock:
        async with server.serving(app, sock, CountingRecorder()):
            yield sock.getsockname()[1], answered


@pytest.mark.parametrize("sent", [b"", b"GET /slow HTTP/1.1\r\nHost: 127"])
async def test_a_connection_without_a_whole_request_is_closed_and_a_slow_answer_is_not_cut(
    address: tuple[int, asyncio.Event], sent: bytes
) -> None:
    port, answered = address
    asking, asker = await asyncio.open_connection("127.0.0.1", port)
    asker.write(b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    idle, idler = await asyncio.open_connection("127.0.0.1", port)
    idler.write(sent)
    async with asyncio.timeout(10):
        assert await idle.read() == b""  # later than the other one was that long without a word
        answered.set()
        assert b"200 OK" in await asking.readuntil(b"at last")
        assert await asking.read() == b""  # and now this one is idle
    for each in (asker, idler):
        each.close()
