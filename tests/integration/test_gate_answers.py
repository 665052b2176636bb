"""What a gate makes of every answer: a status is one, all else is no data, and nothing harms the farm."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from farmd.rollout.gates import OF_ONE_HOST, Asker, asking
from farmd.rollout.judgement import GateAnswer
from store.policies import Gate
from tests.fleet import in_time
from tests.ports import free_ports
from tests.web_servers import Handler, serving

METADATA = "http://169.254.169.254/latest/meta-data"


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    async with asking() as http:
        yield Asker(http)


def at(url: str, **fields: Any) -> Gate:
    return Gate(**({"name": "smoke", "http": url, "timeout": 5.0} | fields))


async def answer(asker: Asker, handler: Handler, **fields: Any) -> GateAnswer:
    async with serving(handler) as url:
        return await in_time(asker(at(url, **fields)))


def status(number: int, **fields: Any) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=number, **fields)

    return handle


async def test_the_status_decides(asker: Asker) -> None:
    assert await answer(asker, status(200)) == GateAnswer("pass", "HTTP 200")
    assert await answer(asker, status(503)) == GateAnswer("fail", "HTTP 503, expected 200")
    assert await answer(asker, status(204), expect=204) == GateAnswer("pass", "HTTP 204")
    assert await answer(asker, status(200), expect=204) == GateAnswer("fail", "HTTP 200, expected 204")


async def test_no_redirect_is_followed(asker: Asker) -> None:
    asked = list[str]()

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    assert await answer(asker, handle) == GateAnswer("fail", "HTTP 302, expected 200")
    metadata = status(302, headers={"Location": METADATA})
    assert await answer(asker, metadata) == GateAnswer("fail", "HTTP 302, expected 200")
    assert asked == ["/"]


async def test_a_long_answer_is_not_read(asker: Asker) -> None:
    sent = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10 * 16):
            await response.write(bytes(65536))
            sent += 65536
        return response

    assert await answer(asker, handle) == GateAnswer("pass", "HTTP 200")
    assert sent < 10 * 1024 * 1024  # the rest of it found no reader


async def test_what_hangs_is_no_data_after_the_timeout(asker: Asker) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    found = await answer(asker, handle, timeout=0.2)
    assert found == GateAnswer("none", "no answer within 0.2 s")


async def test_what_is_not_reached_or_speaks_no_http_is_no_data(asker: Asker) -> None:
    (port,) = free_ports(1)
    assert (await asker(at(f"http://127.0.0.1:{port}/"))).result == "none"
    assert (await asker(at("http://nowhere.invalid/"))).result == "none"

    async def chat(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    server = await asyncio.start_server(chat, "127.0.0.1", 0)
    async with server:
        found = await in_time(asker(at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")))
    assert found.result == "none"
    assert "\n" not in found.text


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "169.16689662",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "100.100.100.200",
    ],
)
async def test_addresses_of_metadata_are_not_reached(asker: Asker, host: str) -> None:
    found = await in_time(asker(at(f"http://{host}/latest")))
    told = "refused: " in found.text or "is not a canonical IPv4 address" in found.text
    assert (found.result, told) == ("none", True)


async def test_a_name_that_resolves_to_such_an_address_does_not_reach_it(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = await in_time(asker(at("http://metadata.example/")))
    assert found == GateAnswer("none", "refused: 169.254.169.254 is a link-local address")


async def test_a_host_that_hangs_keeps_few_connections_and_no_gate_of_another_waiting(asker: Asker) -> None:
    reached, release = list[str](), asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        reached.append(request.path)
        await release.wait()
        return web.Response()

    async with serving(hang) as slow, serving(status(200)) as quick:
        waiting = [asyncio.create_task(asker(at(f"{slow}/{number}", timeout=60.0))) for number in range(100)]
        assert (await in_time(asker(at(quick)))).result == "pass"
        assert len(reached) <= OF_ONE_HOST
        release.set()
        found = await in_time(asyncio.gather(*waiting))
    assert {each.result for each in found} == {"pass"}
    assert len(reached) == 100


# -- Prometheus ---------------------------------------------------------------------------------
QUERY = Gate(name="errors", prometheus='sum(rate(errs{job="web"}[1m]))', max=0.5)


async def queried(handler: Handler, token: Callable[[], str] | None = None) -> GateAnswer:
    async with asking() as http, serving(handler) as url:
        return await in_time(Asker(http, f"{url}/prom/", token)(QUERY))


async def test_a_query_goes_to_the_instant_api_with_the_token() -> None:
    asked = list[Any]()

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.path, dict(request.query), request.headers.get("Authorization")))
        body = {"status": "success", "data": {"resultType": "scalar", "result": [1, "0.12"]}}
        return web.Response(text=json.dumps(body))

    assert await queried(handle, lambda: "s3cret") == GateAnswer("pass", "0.12 <= 0.5")
    wanted = {"query": QUERY.prometheus, "timeout": "5s"}
    assert asked == [("/prom/api/v1/query", wanted, "Bearer s3cret")]


async def test_a_long_or_strange_answer_of_prometheus_is_no_data() -> None:
    long = await queried(status(200, body=b" " * 10 * 1024 * 1024))
    assert long == GateAnswer("none", "Prometheus: an answer of more than 64 KB")
    moved = await queried(status(302, headers={"Location": METADATA}))
    assert moved == GateAnswer("none", "Prometheus: HTTP 302, not its JSON")
    many = b'{"status":"error","error":"' + b"a line\\n" * 100 + b'"}'
    found = await queried(status(400, body=many))
    assert (found.result, len(found.text), "\n" in found.text) == ("none", 200, False)


async def test_without_a_prometheus_a_query_has_no_data(asker: Asker) -> None:
    told = "this farm has no Prometheus: rollouts.prometheus_url is not set"
    assert await asker(QUERY) == GateAnswer("none", told)
