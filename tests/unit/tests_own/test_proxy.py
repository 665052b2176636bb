"""The proxy that fault tests trust: what it holds is not done, what it drops is unknown."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.fleet import LIMIT, in_time
from tests.proxy import TURNS, Proxy


class Upstream:
    """Counts what really arrived."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.parked = asyncio.Event()
        self.left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/park":
            self.parked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        self.bodies.append(await request.read())
        return web.Response(text=f"{len(self.bodies)}")


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp sends a PUT again when its connection breaks; these cases must not."""
    try:
        return await handler(request)
    except aiohttp.ClientOSError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error
    except aiohttp.ServerDisconnectedError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=(_once,))


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    state = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", state.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield state, f"{host}:{port}"
    await runner.cleanup()


async def put(session: aiohttp.ClientSession, proxy: Proxy, body: bytes) -> str:
    async with session.put(f"http://{proxy.address}/v1/txn", data=body) as answer:
        return await answer.text()


async def test_only_the_kth_transaction_is_held_and_passes_on_release(
    upstream: tuple[Upstream, str],
) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        hold = proxy.hold_transaction(2)
        assert await put(session, proxy, b"one") == "1"
        async with session.get(f"http://{proxy.address}/v1/kv/other"):
            pass
        second = asyncio.create_task(put(session, proxy, b"two"))
        await in_time(hold.reached.wait())
        assert state.bodies == [b"one", b""]
        assert hold.seen is not None
        assert hold.seen.body == b"two"
        hold.release()
        assert await in_time(second) == "3"
        assert await put(session, proxy, b"three") == "4"
        assert proxy.transactions() == 3


async def test_a_dropped_request_never_reached_the_server(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        hold = proxy.hold_transaction()
        task = asyncio.create_task(put(session, proxy, b"lost"))
        await in_time(hold.reached.wait())
        hold.drop()
        with pytest.raises(aiohttp.ClientError):
            await in_time(task)
        assert state.bodies == []


async def test_a_dropped_answer_leaves_the_write_done(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        await put(session, proxy, b"before")
        hold = proxy.hold_transaction(answer=True)
        task = asyncio.create_task(put(session, proxy, b"done"))
        await in_time(hold.reached.wait())
        assert state.bodies == [b"before", b"done"]
        assert not task.done()
        hold.drop()
        with pytest.raises(aiohttp.ClientError):
            await in_time(task)


async def test_a_write_held_while_its_client_died_still_arrives(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream
    async with Proxy(address) as proxy:
        hold = proxy.hold_transaction()
        async with client() as session:
            task = asyncio.create_task(put(session, proxy, b"zombie"))
            await in_time(hold.reached.wait())
            task.cancel()
        hold.release()
        async with asyncio.timeout(LIMIT):
            while state.bodies != [b"zombie"]:
                await asyncio.sleep(0.01)


async def test_a_cancelled_watch_is_cancelled_at_the_server(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        task = asyncio.create_task(session.get(f"http://{proxy.address}/park"))
        await asyncio.wait_for(state.parked.wait(), 5)
        task.cancel()
        await asyncio.wait_for(state.left.wait(), 5)


async def test_refusing_cuts_old_and_new_connections_until_accepted(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        parked = asyncio.create_task(session.get(f"http://{proxy.address}/park"))
        await asyncio.wait_for(state.parked.wait(), 5)
        proxy.refuse()
        with pytest.raises(aiohttp.ClientError):
            await in_time(parked)
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(put(session, proxy, b"x"), 5)
        proxy.accept()
        assert await asyncio.wait_for(put(session, proxy, b"y"), 5) == "1"


async def test_a_frozen_connection_stays_open_and_delivers_when_thawed(
    upstream: tuple[Upstream, str],
) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        await put(session, proxy, b"a")
        proxy.freeze()
        task = asyncio.create_task(put(session, proxy, b"b"))
        while len(proxy.requests) < 2:
            await asyncio.sleep(0.01)
        assert state.bodies == [b"a"]
        proxy.thaw()
        assert await in_time(task) == "2"


async def test_chunked_bodies_are_passed_whole(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream

    async def parts() -> AsyncIterator[bytes]:
        yield b"a" * 70_000
        yield b"b"

    async with Proxy(address) as proxy, client() as session:
        async with session.put(f"http://{proxy.address}/v1/txn", data=parts()) as answer:
            assert await answer.text() == "1"
        assert state.bodies == [b"a" * 70_000 + b"b"]


async def test_a_cut_request_reaches_the_server_only_when_it_is_released(
    upstream: tuple[Upstream, str],
) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        hold = proxy.hold_transaction()
        task = asyncio.create_task(put(session, proxy, b"late"))
        await in_time(hold.reached.wait())
        hold.cut()
        with pytest.raises(aiohttp.ClientError):
            await in_time(task)
        assert await put(session, proxy, b"meanwhile") == "1"
        hold.release()
        await in_time(hold.finished.wait())
        assert state.bodies == [b"meanwhile", b"late"]


async def test_failing_answers_in_the_servers_place(upstream: tuple[Upstream, str]) -> None:
    state, address = upstream
    async with Proxy(address) as proxy, client() as session:
        proxy.fail(429, lambda seen: seen.method == "PUT")
        async with session.put(f"http://{proxy.address}/v1/txn", data=b"x") as answer:
            assert answer.status == 429
        proxy.recover()
        assert await put(session, proxy, b"y") == "1"
        assert state.bodies == [b"y"]


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_as_the_proxy_ends_is_closed(
    upstream: tuple[Upstream, str], turns: int
) -> None:
    """Else it is reported as unclosed in a case that has nothing to do with it."""
    proxy = Proxy(upstream[1])
    await proxy.__aenter__()
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port))):
        for _ in range(turns):
            await asyncio.sleep(0)
        await proxy.__aexit__(None, None, None)
        gc.collect()


@pytest.mark.parametrize("turns", range(TURNS + 4))
async def test_a_connection_to_the_server_that_comes_while_the_proxy_ends_is_closed(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """It may come at any of the turns of the loop in which the proxy ends."""
    ending, opened, served = asyncio.Event(), list[asyncio.StreamWriter](), list[asyncio.StreamWriter]()
    connect = asyncio.open_connection

    async def late(*address: object, **options: object) -> object:
        made = await connect(*address, **options)  # type: ignore[arg-type]
        opened.append(made[1])
        await ending.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        return made

    server = await asyncio.start_server(lambda _, writer: served.append(writer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Proxy(f"127.0.0.1:{port}") as proxy:
            monkeypatch.setattr(asyncio, "open_connection", late)
            _, client = await connect(*proxy.address.rsplit(":", 1))
            async with asyncio.timeout(LIMIT):
                while not opened:
                    await asyncio.sleep(0)
            ending.set()
        closed = [writer.transport.is_closing() for writer in opened]
        for writer in (client, *opened, *served):
            writer.close()
    assert closed == [True]


async def test_a_request_that_is_held_for_long_reaches_a_server_that_ends_silent_connections() -> None:
    silent, over, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if silent.is_set():
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")
        else:
            silent.set()
            await over.wait()
        writer.close()
        gone.set()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, Proxy(f"{host}:{port}") as proxy, client() as session:
        hold = proxy.hold(lambda _: True)
        asked = asyncio.create_task(put(session, proxy, b"one"))
        await in_time(hold.reached.wait())
        over.set()
        await in_time(gone.wait())
        hold.release()
        assert await in_time(asked) == "late"
        await in_time(hold.finished.wait())
