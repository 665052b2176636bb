"""``GET /v1/services/NAME/endpoints``: what routers get, and each refusal as one typed JSON error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from farmd.services.board import EndpointsAnswer, NotKnown, TooManyWaiting
from farmd.services.endpoints import Endpoint
from farmd.web.server import errors_as_json, listening, serving
from farmd.web.services import INDEX_HEADER, add_routes
from store.errors import NotFound
from store.services import Service
from tests.recorders import CountingRecorder

WEB = Service(id="ab12", name="web", port="http", active=["rcs/00aa"])
FOUND = EndpointsAnswer(WEB, (Endpoint("n1", "web~0", "rcs/00aa", "10.0.0.1", 20001),), 7)


class Scripted:
    """A board that answers as a test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []
        self.error: Exception | None = None
        self.parks = False
        self.left = asyncio.Event()
        self.closed = asyncio.Event()

    async def answer(self, name: str, index: int, seconds: float) -> EndpointsAnswer:
        self.asked.append((name, index, seconds))
        if self.error is not None:
            raise self.error
        if self.parks:
            try:
                await self.closed.wait()
            finally:
                self.left.set()
        return FOUND

    async def close(self) -> None:
        self.closed.set()


@contextlib.asynccontextmanager
async def farm(board: Scripted | None) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    app = web.Application(middlewares=[errors_as_json])
    add_routes(app, lambda: board)  # type: ignore[arg-type, return-value]
    with listening("127.0.0.1", 0) as sock:
        async with serving(app, sock, CountingRecorder()), aiohttp.ClientSession() as http:
            yield http, f"http://127.0.0.1:{sock.getsockname()[1]}/v1/services/web/endpoints"


async def test_the_answer_has_the_index_in_its_header_and_its_body() -> None:
    board = Scripted()
    async with farm(board) as (http, url), http.get(url) as answer:
        assert answer.headers[INDEX_HEADER] == "7"
        assert await answer.json() == {
            "apiVersion": "farmd/v1",
            "kind": "EndpointList",
            "service": "web",
            "port": "http",
            "index": 7,
            "items": [
                {
                    "node": "n1",
                    "instance": "web~0",
                    "owner": "rcs/00aa",
                    "address": "10.0.0.1",
                    "port": 20001,
                }
            ],
        }
        assert board.asked == [("web", 0, 0.0)]


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("?index=7&wait=30s", 30.0),
        ("?index=7", 300.0),
        ("?index=7&wait=500ms", 0.5),
        ("?index=7&wait=10m", 600.0),
    ],
)
async def test_a_wait_is_written_as_elsewhere(query: str, asked: float) -> None:
    board = Scripted()
    async with farm(board) as (http, url), http.get(url + query) as answer:
        assert answer.status == 200
        assert board.asked == [("web", 7, asked)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?index=x", "index: found 'x', expected the index of an earlier answer, or 0"),
        ("?index=-1", "index: found '-1', expected the index of an earlier answer, or 0"),
        ("?index=", "index: found '', expected the index of an earlier answer, or 0"),
        (f"?index={'9' * 30}", f"index: found '{'9' * 30}', expected the index of an earlier answer, or 0"),
        ("?index=7&wait=soon", "wait: found 'soon', expected a time up to 600 seconds, such as 30s"),
        ("?index=7&wait=-1", "wait: found '-1', expected a time up to 600 seconds, such as 30s"),
        ("?index=7&wait=2h", "wait: found '2h', expected a time up to 600 seconds, such as 30s"),
    ],
)
async def test_a_bad_query_is_refused_and_names_what_is_expected(query: str, message: str) -> None:
    board = Scripted()
    async with farm(board) as (http, url), http.get(url + query) as answer:
        assert answer.status == 400
        assert await answer.json() == {"error": {"code": "bad_request", "message": message}}
        assert board.asked == []


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("service 'web' does not exist"), 404, "not_found"),
        (TooManyWaiting("1000 wait"), 429, "too_many_requests"),
        (NotKnown("services: not read yet"), 503, "service_unavailable"),
    ],
)
async def test_each_error_has_a_code(error: Exception, status: int, code: str) -> None:
    board = Scripted()
    board.error = error
    async with farm(board) as (http, url), http.get(url) as answer:
        assert answer.status == status
        assert await answer.json() == {"error": {"code": code, "message": str(error)}}


async def test_a_farm_that_has_not_reached_the_store_says_so() -> None:
    async with farm(None) as (http, url), http.get(url) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "service_unavailable")


async def test_a_client_that_hangs_up_waits_no_longer() -> None:
    board = Scripted()
    board.parks = True
    async with farm(board) as (http, url):
        with pytest.raises(asyncio.TimeoutError):
            await http.get(f"{url}?index=7", timeout=aiohttp.ClientTimeout(total=0.1))
        await asyncio.wait_for(board.left.wait(), 10.0)
        assert not board.closed.is_set()


async def test_those_who_wait_are_answered_when_the_server_stops() -> None:
    board = Scripted()
    board.parks = True
    async with farm(board) as (http, url):
        waiting = [asyncio.create_task(http.get(f"{url}?index=7")) for _ in range(200)]
        while len(board.asked) < 100:  # as many as a client opens connections
            await asyncio.sleep(0)
        await board.close()
        answers = await asyncio.gather(*waiting)
        assert {answer.status for answer in answers} == {200}
