"""Connections: kept, separate by lane, never a write twice, and nothing leaks."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from store.consul.environment import Address
from store.consul.transport import POOL_SIZES, HttpTransport
from store.errors import InputInvalid, OutcomeUnknown, StoreUnavailable, TooLarge, UnexpectedAnswer
from store.ports import Lane, Request
from tests.scripted_consul import Scripted, Seen, json_answer


@asynccontextmanager
async def transport_to(address: str, **options: object) -> AsyncIterator[HttpTransport]:
    parsed = Address.from_environment({}, address)
    async with HttpTransport(parsed, **options) as transport:  # type: ignore[arg-type]
        yield transport


def get(path: str = "/v1/kv/a", lane: Lane = Lane.READ) -> Request:
    return Request("GET", path, lane=lane)


async def test_calls_one_after_another_share_one_connection() -> None:
    async with Scripted() as consul, transport_to(consul.address) as transport:
        for _ in range(5):
            await transport.send(get(), 5)
        assert len(consul.seen) == 5
        assert consul.connections == 1


async def test_a_full_pool_of_watches_and_writes_starves_no_renewal() -> None:
    parked, all_parked = asyncio.Event(), asyncio.Event()

    async def answer(seen: Seen) -> web.StreamResponse:
        if "park" in seen.target:
            if len(consul.seen) == 3:
                all_parked.set()
            await parked.wait()
        return json_answer("true")

    pools = dict.fromkeys(Lane, 1)
    async with Scripted(answer) as consul, transport_to(consul.address, pool_sizes=pools) as transport:
        parkers = [
            asyncio.create_task(transport.send(get("/v1/kv/park", lane), 30))
            for lane in (Lane.READ, Lane.WATCH, Lane.WRITE)
            for _ in range(3)
        ]
        await asyncio.wait_for(all_parked.wait(), 5)
        renewal = await transport.send(Request("PUT", "/v1/session/renew/x", lane=Lane.SESSION), 5)
        assert renewal.status == 200
        parked.set()
        assert {r.status for r in await asyncio.gather(*parkers)} == {200}


def test_at_most_64_queries_can_be_parked_and_all_lanes_stay_below_consuls_limit_of_200() -> None:
    assert POOL_SIZES[Lane.WATCH] == 64
    assert POOL_SIZES[Lane.SESSION] >= 4
    assert sum(POOL_SIZES.values()) < 200


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_write_on_a_kept_connection_that_breaks_is_not_sent_again(method: str) -> None:
    """aiohttp would resend PUT and DELETE by itself: a transaction could be applied twice."""

    async def answer(seen: Seen) -> web.StreamResponse | None:
        return None if seen.target == "/v1/txn" else json_answer("true")

    async with Scripted(answer) as consul, transport_to(consul.address) as transport:
        await transport.send(Request("PUT", "/v1/kv/a", lane=Lane.WRITE), 5)  # a connection to keep
        with pytest.raises(OutcomeUnknown) as caught:
            await transport.send(Request(method, "/v1/txn", body=b"[]", lane=Lane.WRITE), 5)
        assert [seen.target for seen in consul.seen] == ["/v1/kv/a", "/v1/txn"]
        assert caught.value.fields["disconnected"] is True


async def test_a_cancelled_blocking_read_closes_its_connection_and_frees_its_place() -> None:
    waiting, gone = asyncio.Event(), asyncio.Event()

    async def answer(seen: Seen) -> web.StreamResponse:
        if "index" not in seen.target:
            return json_answer("true")
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError("unreachable")

    async with (
        Scripted(answer) as consul,
        transport_to(consul.address, pool_sizes=dict.fromkeys(Lane, 1)) as transport,
    ):
        request = Request("GET", "/v1/kv/a", (("index", "5"),), lane=Lane.WATCH)
        watch = asyncio.create_task(transport.send(request, 60))
        await asyncio.wait_for(waiting.wait(), 5)
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
        await asyncio.wait_for(gone.wait(), 5)  # the server saw the connection go
        # The only place of the lane is free again.
        assert (await transport.send(get(lane=Lane.WATCH), 5)).status == 200


async def test_a_refused_connection_never_left() -> None:
    async with Scripted() as consul:
        address = consul.address
    async with transport_to(address) as transport:
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await transport.send(Request("PUT", "/v1/txn", body=b"[]", lane=Lane.WRITE), 5)


async def test_waiting_in_vain_for_a_connection_never_left() -> None:
    waiting, release = asyncio.Event(), asyncio.Event()

    async def answer(_seen: Seen) -> web.StreamResponse:
        waiting.set()
        await release.wait()
        return json_answer("true")

    async with (
        Scripted(answer) as consul,
        transport_to(consul.address, pool_sizes=dict.fromkeys(Lane, 1)) as transport,
    ):
        write = Request("PUT", "/v1/txn", body=b"[]", lane=Lane.WRITE)
        first = asyncio.create_task(transport.send(write, 30))
        await asyncio.wait_for(waiting.wait(), 5)
        with pytest.raises(StoreUnavailable):
            await transport.send(write, 0.2)
        release.set()
        await first
        assert len(consul.seen) == 1


async def test_a_write_that_is_not_answered_in_time_has_an_unknown_outcome() -> None:
    release = asyncio.Event()

    async def answer(_seen: Seen) -> web.StreamResponse:
        await release.wait()
        return json_answer("true")

    async with Scripted(answer) as consul, transport_to(consul.address) as transport:
        with pytest.raises(OutcomeUnknown) as caught:
            await transport.send(Request("PUT", "/v1/txn", body=b"[]", lane=Lane.WRITE), 0.2)
        assert caught.value.fields["disconnected"] is False
        assert len(consul.seen) == 1
        release.set()


async def test_an_answer_cut_in_its_body_is_no_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ntrue")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, transport_to(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as transport:
        with pytest.raises(OutcomeUnknown):
            await transport.send(get(), 5)


async def test_an_answer_that_is_not_http_is_unexpected() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, transport_to(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as transport:
        with pytest.raises(UnexpectedAnswer, match="not HTTP"):
            await transport.send(get(), 5)


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_answer_over_the_limit_is_not_read_to_its_end(chunked: bool) -> None:
    async def answer(_seen: Seen) -> web.StreamResponse:
        response = json_answer(b"x" * 100_000)
        if chunked:
            response.enable_chunked_encoding()
        return response

    async with (
        Scripted(answer) as consul,
        transport_to(consul.address, max_answer_bytes=10_000) as transport,
    ):
        with pytest.raises(UnexpectedAnswer, match="more than 10000 bytes"):
            await transport.send(get(), 5)


async def test_an_answer_over_the_bound_of_its_request_is_not_read_to_its_end() -> None:
    async def answer(_seen: Seen) -> web.StreamResponse:
        response = json_answer(b"x" * 100_000)
        response.enable_chunked_encoding()
        return response

    async with Scripted(answer) as consul, transport_to(consul.address) as transport:
        with pytest.raises(TooLarge, match="found more than 10000 bytes"):
            await transport.send(replace(get(), most=10_000), 5)


async def test_a_redirect_is_handed_back_and_not_followed() -> None:
    async def answer(_seen: Seen) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "http://elsewhere.invalid/"})

    async with Scripted(answer) as consul, transport_to(consul.address) as transport:
        request = Request("GET", "/v1/kv/a", headers={"X-Consul-Token": "secret"})
        assert (await transport.send(request, 5)).status == 302
        assert len(consul.seen) == 1


async def test_keys_are_escaped_once_and_arrive_as_they_are() -> None:
    async with Scripted() as consul, transport_to(consul.address) as transport:
        await transport.send(
            Request("GET", "/v1/kv/a b/~1/ü?&%2f/../x", (("separator", "/"), ("stale", ""))), 5
        )
        assert consul.seen[0].target == "/v1/kv/a%20b/~1/%C3%BC%3F%26%252f/../x?separator=%2F&stale="


async def test_requests_say_who_we_are_and_ask_for_no_compression() -> None:
    async with Scripted() as consul, transport_to(consul.address) as transport:
        await transport.send(get(), 5)
        headers = consul.seen[0].headers
        assert headers["User-Agent"].startswith("farmd/")
        assert headers["Accept-Encoding"] == "identity"


async def test_basic_auth_namespace_and_partition_go_with_every_request() -> None:
    env = {"CONSUL_HTTP_AUTH": "ann:pa:ss", "CONSUL_NAMESPACE": "team", "CONSUL_PARTITION": "west"}
    async with Scripted() as consul:
        address = Address.from_environment(env, consul.address)
        async with HttpTransport(address) as transport:
            await transport.send(get(), 5)
        headers = consul.seen[0].headers
        assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"ann:pa:ss"
        assert headers["X-Consul-Namespace"] == "team"
        assert headers["X-Consul-Partition"] == "west"
        assert "pa:ss" not in repr(address)


async def test_the_datacenter_goes_with_every_request_and_a_name_that_none_can_have_is_refused() -> None:
    async with Scripted() as consul:
        address = Address.from_environment({"CONSUL_HTTP_DC": "DC2"}, consul.address)
        async with HttpTransport(address) as transport:
            await transport.send(get(), 5)
            await transport.send(Request("PUT", "/v1/kv/a", (("cas", "1"),), lane=Lane.WRITE), 5)
        assert [seen.target for seen in consul.seen] == ["/v1/kv/a?dc=dc2", "/v1/kv/a?cas=1&dc=dc2"]
    with pytest.raises(InputInvalid, match=r"^CONSUL_HTTP_DC: found 'd/c'"):
        Address.from_environment({"CONSUL_HTTP_DC": "d/c"})


async def test_response_headers_are_lower_case() -> None:
    async with Scripted() as consul, transport_to(consul.address) as transport:
        assert (await transport.send(get(), 5)).headers["x-consul-index"] == "7"


async def test_unix_socket(tmp_path: Path) -> None:
    async with Scripted(unix=tmp_path / "consul.sock") as consul, transport_to(consul.address) as transport:
        assert (await transport.send(get("/v1/status/leader"), 5)).status == 200
        assert consul.seen[0].target == "/v1/status/leader"


async def test_a_missing_unix_socket_never_left(tmp_path: Path) -> None:
    async with transport_to(f"unix://{tmp_path}/none.sock") as transport:
        with pytest.raises(StoreUnavailable):
            await transport.send(get(), 5)


@pytest.mark.parametrize(("index", "kept"), [("7", ""), ("8", "[1]")])
async def test_the_body_of_an_answer_that_is_known_is_dropped_and_its_connection_kept(
    index: str, kept: str
) -> None:
    """At the end of each wait Consul sends the whole tree again; a farm must not hold it twice."""

    async def answer(seen: Seen) -> web.StreamResponse:
        return json_answer("[1]", **{"X-Consul-Index": index})

    async with Scripted(answer) as consul, transport_to(consul.address) as transport:
        for _ in range(2):
            found = await transport.send(Request("GET", "/v1/kv/a", known="7"), 5)
            assert (found.headers["x-consul-index"], found.body.decode()) == (index, kept)
        assert consul.connections == 1
