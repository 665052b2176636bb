"""The places for connections: requests that wait leave room for others, and lose their places to nobody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from farmd.web import connections
from farmd.web.connections import CLOSED, parked
from farmd.web.server import listening, serving
from tests.fleet import eventually
from tests.recorders import CountingRecorder

PLACES = 16


class Site:
    """A server with few places, one route that waits in a place for that, and one that only takes long."""

    def __init__(self) -> None:
        self.recorder, self.go, self.inside = CountingRecorder(), asyncio.Event(), 0

    async def waits(self, request: web.Request) -> web.Response:
        with parked(request):
            return await self.takes_long(request)

    async def takes_long(self, _: web.Request) -> web.Response:
        self.inside += 1
        try:
            await self.go.wait()
        finally:
            self.inside -= 1
        return web.Response(text="done")

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        app = web.Application()
        for path, handler in ("/waits", self.waits), ("/long", self.takes_long), ("/health", self.health):
            app.router.add_get(path, handler)
        with listening("127.0.0.1", 0) as sock:
            async with serving(app, sock, self.recorder):
                yield f"http://127.0.0.1:{sock.getsockname()[1]}"

    async def holds(self, count: int) -> None:
        async def so() -> bool:
            return self.inside == count

        await eventually(so, what=f"{count} requests that are handled")


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(connections, "most", lambda: PLACES)
    return Site()


async def asked(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(url) as answer:
        await answer.read()
        return answer.status


def peer(address: str = "127.0.0.1") -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, local_addr=(address, 0)))


async def test_one_peer_takes_half_of_the_places_for_requests_that_wait(site: Site) -> None:
    async with site.open() as url, peer() as http, peer("127.0.0.2") as other:
        waiting = [asyncio.create_task(asked(http, f"{url}/waits")) for _ in range(PLACES // 4)]
        await site.holds(PLACES // 4)
        assert await asked(http, f"{url}/waits") == 503
        theirs = asyncio.create_task(asked(other, f"{url}/waits"))
        await site.holds(PLACES // 4 + 1)
        site.go.set()
        assert await asyncio.gather(*waiting, theirs) == [200] * (PLACES // 4 + 1)
        assert await asked(http, f"{url}/waits") == 200


async def test_requests_that_wait_take_half_of_the_places_and_keep_them(site: Site) -> None:
    async with site.open() as url, peer() as http, peer("127.0.0.2") as other, peer("127.0.0.3") as third:
        waiting = [
            asyncio.create_task(asked(each, f"{url}/waits"))
            for each in (http, other)
            for _ in range(PLACES // 4)
        ]
        await site.holds(PLACES // 2)
        assert await asked(third, f"{url}/waits") == 503
        idle = [await asyncio.open_connection(*url.removeprefix("http://").split(":")) for _ in range(40)]
        assert await asked(http, f"{url}/health") == 200
        site.go.set()
        assert await asyncio.gather(*waiting) == [200] * (PLACES // 2)
        assert await asked(http, f"{url}/waits") == 200
        for _, writer in idle:
            writer.close()


async def test_where_requests_hold_all_places_the_oldest_that_does_not_wait_gives_up_its_own(
    site: Site,
) -> None:
    async with site.open() as url, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        waiting = asyncio.create_task(asked(http, f"{url}/waits"))
        await site.holds(1)
        long = [asyncio.create_task(asked(http, f"{url}/long")) for _ in range(PLACES - 1)]
        await site.holds(PLACES)
        assert await asked(http, f"{url}/health") == 200
        assert site.recorder.counts[CLOSED, "busy"] == 1
        site.go.set()
        answers = await asyncio.gather(*long, return_exceptions=True)
        assert sum(isinstance(each, aiohttp.ClientError) for each in answers) == 1
        assert await waiting == 200
