"""Answers that go on, connections by a proxy, and what ends a connection between requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from store import http
from store.http.connection import drop
from tests.certificates import authority, issue
from tests.scripted_consul import Scripted
from tests.unit.store.test_transport_tls import server_context

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = http.head("GET", "/", b"Host: x\r\n", {}, 0)


@contextlib.asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server of one connection after the other; its port."""

    served = dict[asyncio.Task[None] | None, asyncio.StreamWriter]()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served[asyncio.current_task()] = writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for writer in served.values():
        drop(writer.transport)
    await asyncio.wait_for(asyncio.gather(*filter(None, served), return_exceptions=True), 5)


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> bytes:
    """Serve one connection as a proxy does; the head of its request."""
    head = await reader.readuntil(b"\r\n\r\n")
    back, forth = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()

    await asyncio.gather(copy(reader, forth), copy(back, writer))
    return head


def pool_of(port: int, **fields: str) -> http.Pool:
    return http.Pool(http.Peer("127.0.0.1", port, **fields), 4)  # type: ignore[arg-type]


async def asked(pool: http.Pool, *, repeat: bool = True) -> http.Answer:
    return await pool.send(HEAD, b"", lambda _s, _h: 1 << 20, timeout=5, connect=5, repeat=repeat)


async def test_a_stream_is_read_as_it_comes_and_its_sender_waits_for_its_reader() -> None:
    chunk, written = b"x" * 65536, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1000):
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            written += 1
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with serving(serve) as port:
        pool = pool_of(port)
        async with pool.stream(HEAD, timeout=30, connect=5) as answer:
            first = await anext(answer)
            before = -1
            while before != written:  # until the sender stands still
                before = written
                await asyncio.sleep(0.05)
            assert written < 500
            got = len(first) + sum([len(part) async for part in answer])
        assert got == 1000 * len(chunk)
        pool.close()


async def test_a_stream_that_is_cut_is_lost_and_one_without_a_length_ends_with_its_connection() -> None:
    cut = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        length = b"Content-Length: 100\r\n" if cut else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\nhalf")
        await writer.drain()

    async with serving(serve) as port:
        pool = pool_of(port)
        with pytest.raises(http.Lost, match="ended the connection"):
            async with pool.stream(HEAD, timeout=5, connect=5) as answer:
                [part async for part in answer]
        cut = False
        async with pool.stream(HEAD, timeout=5, connect=5) as answer:
            assert b"".join([part async for part in answer]) == b"half"
        assert (await asked(pool)).body == b"half"
        pool.close()


async def test_a_reader_of_a_stream_that_gives_up_is_told_so_and_a_server_that_is_silent_is_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    async with serving(serve) as port:
        pool = pool_of(port)
        with pytest.raises(TimeoutError):
            async with pool.stream(HEAD, timeout=60, connect=5) as answer:
                await asyncio.wait_for(anext(answer), 0.05)
        with pytest.raises(http.Lost, match="took too long"):
            async with pool.stream(HEAD, timeout=0.05, connect=5) as answer:
                await anext(answer)
        pool.close()


async def test_an_interim_answer_is_passed_over_and_bytes_that_nobody_asked_for_end_a_connection() -> None:
    ended = asyncio.Queue[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        writer.write(interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        try:
            assert await reader.read() == b""  # no second request comes here
        finally:
            ended.put_nowait(1)

    async with serving(serve) as port:
        pool = pool_of(port)
        for _ in range(2):
            answer = await asked(pool, repeat=False)
            assert (answer.status, answer.body, "link" in answer.headers) == (200, b"ok", False)
            await asyncio.wait_for(ended.get(), 5)
        pool.close()


async def test_a_read_on_a_kept_connection_that_ended_is_sent_again_and_a_write_is_not() -> None:
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")  # and hangs up without a word

    async with serving(serve) as port:
        pool = pool_of(port)
        assert [(await asked(pool)).body for _ in range(2)] == [b"ok", b"ok"]
        assert count == 2
        with pytest.raises(http.Lost) as lost:
            await asked(pool, repeat=False)
        assert (lost.value.hung_up, count) == (True, 2)
        pool.close()


async def test_a_request_under_way_is_lost_when_its_connections_are_closed() -> None:
    asked_for = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked_for.set()
        await reader.read()

    async with serving(serve) as port:
        pool = pool_of(port)
        waiting = asyncio.create_task(asked(pool))
        await asked_for.wait()
        pool.close()
        with pytest.raises(http.Lost, match="was closed"):
            await waiting


@pytest.mark.parametrize(
    ("secure", "scheme"), [(True, "http"), (False, "http"), (True, "https"), (False, "https")]
)
async def test_a_proxy_passes_a_connection_on_and_gets_its_own_password_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool, scheme: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    authority(tmp_path)
    issue(tmp_path, "server", "DNS:localhost,IP:127.0.0.1")
    heads, ended = list[bytes](), asyncio.Event()
    async with Scripted(tls=server_context(tmp_path) if secure else None) as server:
        there = server.address.rpartition(":")[2]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await passed_on(reader, writer, int(there)))
            ended.set()

        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem")) if secure else None
        async with serving(serve, server_context(tmp_path) if scheme == "https" else None) as port:
            peer = http.Peer(
                "127.0.0.1", int(there), tls=lambda: context, proxy=f"{scheme}://ann:p%40ss@127.0.0.1:{port}"
            )
            pool = http.Pool(peer, 2)
            assert [(await asked(pool)).status for _ in range(2)] == [200, 200]
            pool.close()
            await asyncio.wait_for(ended.wait(), 5)
    (head,) = heads
    assert head.startswith(b"CONNECT 127.0.0.1:%s HTTP/1.1\r\n" % there.encode())
    assert base64.b64encode(b"ann:p@ss") in head
    assert not any("authorization" in name.lower() for name in server.seen[0].headers)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy answers 407"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the proxy does not speak HTTP"),
        (b"", "the proxy ended the connection"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000, "the proxy's answer does not end"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-", "the proxy's answer does not end"),
    ],
    ids=["refusal", "ssh", "end", "endless head", "more"],
)
async def test_a_proxy_that_refuses_lets_nothing_leave(answer: bytes, why: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with serving(serve) as port:
        pool = pool_of(1, proxy=f"http://127.0.0.1:{port}")
        with pytest.raises(http.NeverLeft, match=why):
            await asked(pool)
        pool.close()


def test_no_header_begins_another_line() -> None:
    for headers, target in (({"X-A": "b\r\nX-C: d"}, "/"), ({}, "/ HTTP/1.1\r\nX: y")):
        with pytest.raises(ValueError, match="line break"):
            http.head("GET", target, b"", headers, 0)


async def test_an_answer_behind_an_answer_changes_nothing_of_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        first = b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nContent-Length: 2\r\n\r\nok"
        writer.write(first + b"HTTP/1.1 403 No\r\nX-Consul-Index: 8\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving(serve) as port:
        pool = pool_of(port)
        for _ in range(2):
            answer = await asked(pool, repeat=False)
            assert (answer.status, answer.body, answer.headers["x-consul-index"]) == (200, b"ok", "7")
        pool.close()


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "line", "times"),
    [
        (b"", b"X-A: b\r\n", 200_000),
        (b"", b"X-A: ", 300_000),
        (b"X-B: c\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n", 60_000),
        (CHUNKED + b"2\r\nok\r\n0\r\n", b"X-A: b\r\n", 200_000),
        (CHUNKED + b"2\r\nok\r\n0\r\n", b"X-A: ", 300_000),
    ],
)
async def test_a_head_without_an_end_is_no_answer(first: bytes, line: bytes, times: int) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d OK\r\n" % (103 if b"X-B" in first else 200) + first)
        try:
            for _ in range(times // 1000):
                writer.write(line * 1000)
                await writer.drain()
            await reader.read()
        finally:
            drop(writer.transport)
            await asyncio.sleep(0)
            ended.set()

    async with serving(serve) as port:
        pool = pool_of(port)
        with pytest.raises(http.NotHttp, match="a head of more than"):
            await asked(pool)
        await asyncio.wait_for(ended.wait(), 5)
        pool.close()


async def _ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await writer.drain()


@pytest.mark.parametrize("last", [b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", b""])
async def test_a_kept_connection_on_which_something_arrived_meanwhile_is_not_used(last: bytes) -> None:
    peers = list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer)
        await _ok(reader, writer)
        await reader.read()

    async with serving(serve) as port:
        pool = pool_of(port)
        await asked(pool)
        kept = peers[0].get_extra_info("socket")
        if last:
            os.write(kept.fileno(), last)
        else:
            kept.shutdown(socket.SHUT_WR)
        answer = await asked(pool, repeat=False)  # the loop has not told the connection yet
        assert (answer.status, len(peers)) == (200, 2)
        pool.close()


async def test_a_read_whose_time_to_connect_is_over_is_lost_with_its_kept_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _ok(reader, writer)
        await reader.readuntil(b"\r\n\r\n")

    async with serving(serve) as port:
        pool = pool_of(port)
        await asked(pool)
        with pytest.raises(http.Lost) as lost:
            await pool.send(HEAD, b"", lambda _s, _h: 9, timeout=5, connect=0, repeat=True)
        assert lost.value.hung_up
        pool.close()


async def test_closed_connections_are_made_no_more() -> None:
    """Neither for a request that waits for a place, nor for one that connects, nor for a later one."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        ended.set()

    async with serving(serve) as port:
        pool = http.Pool(http.Peer("127.0.0.1", port), 1)
        sent = [asyncio.create_task(asked(pool)) for _ in range(2)]
        await asyncio.sleep(0)
        pool.close()
        sent.append(asyncio.create_task(asked(pool)))
        for error in await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 5):
            assert isinstance(error, http.NeverLeft)
            assert "were closed" in error.reason
        with pytest.raises(http.NeverLeft, match="were closed"):
            async with pool.stream(HEAD, timeout=5, connect=5):
                pass
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_request_that_was_answered_early_holds_no_connection_to_a_peer_that_stops_reading() -> None:
    body, got, returned = b"x" * (32 << 20), bytearray(), asyncio.Event()
    counted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await returned.wait()
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                got.extend(part)
        counted.set()

    async with serving(serve) as port:
        pool = pool_of(port)
        answer = await pool.send(HEAD, body, lambda _s, _h: 9, timeout=5, connect=5, repeat=False)
        returned.set()
        await asyncio.wait_for(counted.wait(), 10)
        assert answer.status == 413
        assert len(got) < len(body)
        pool.close()


async def test_a_stream_that_was_left_has_ended_and_the_readers_own_timeout_stays_its_own() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    async with serving(serve) as port:
        pool = pool_of(port)
        with pytest.raises(TimeoutError, match="of my own"):
            async with pool.stream(HEAD, timeout=5, connect=5) as answer:
                raise TimeoutError("of my own")
        with pytest.raises(http.Lost, match="was closed"):
            await asyncio.wait_for(anext(answer), 5)
        pool.close()


async def test_a_name_that_no_host_can_have_is_never_asked() -> None:
    pool = http.Pool(http.Peer("a..b", 80), 1)
    with pytest.raises(http.NeverLeft):
        await asked(pool)


def test_a_header_is_sent_as_utf_8() -> None:
    assert "Impersonate-User: Jürgen\r\n".encode() in http.head(
        "GET", "/", b"", {"Impersonate-User": "Jürgen"}, 0
    )


@pytest.mark.parametrize("by_proxy", ["", "http", "https"])
@pytest.mark.parametrize("secure", [False, True])
async def test_a_request_that_is_cancelled_anywhere_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool, by_proxy: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    authority(tmp_path)
    issue(tmp_path, "server", "DNS:localhost,IP:127.0.0.1")
    complaints = list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context["message"]))

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await passed_on(reader, writer, there)

    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem")) if secure else None
    server = server_context(tmp_path) if secure else None
    over = server_context(tmp_path) if by_proxy == "https" else None
    async with Scripted(tls=server) as consul, serving(pass_on, over) as proxy:
        there = int(consul.address.rpartition(":")[2])
        address = f"{by_proxy}://127.0.0.1:{proxy}" if by_proxy else ""
        before, turns, done = _sockets(), 0, False
        while not done:
            pool = http.Pool(http.Peer("127.0.0.1", there, tls=lambda: context, proxy=address), 1)
            request = asyncio.create_task(asked(pool))
            for _ in range(turns):
                await asyncio.sleep(0)
            done = not request.cancel()
            await asyncio.wait([request])
            turns += 1
            assert (await asked(pool)).status == 200
            pool.close()
        async with asyncio.timeout(10):
            while _sockets() - before:
                await asyncio.sleep(0.01)
    del request
    gc.collect()
    assert complaints == []


def _sockets() -> set[str]:
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            link = str(each.readlink())
            if link.startswith("socket:"):
                found.add(link)
    return found
