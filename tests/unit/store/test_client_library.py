"""The traps of python-consul2 that our own requests underneath it avoid, each by name."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from aiohttp import web

from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.exchange import Exchange
from store.consul.library import Library
from store.consul.transport import HttpTransport, connect
from store.errors import UnexpectedAnswer
from store.ports import Request, Response
from tests.scripted_consul import Scripted, Seen, json_answer
from tests.virtual import VirtualClock


class Recording:
    """A ``Transport`` that notes the time limits and answers ``[]``."""

    def __init__(self, headers: dict[str, str] | None = None, body: bytes = b"[]", status: int = 200) -> None:
        self.sent: list[tuple[Request, float]] = []
        self._response = Response(
            status,
            {"content-type": "application/json", "x-consul-knownleader": "true", **(headers or {})},
            body,
        )

    async def send(self, request: Request, timeout: float) -> Response:
        self.sent.append((request, timeout))
        return self._response

    async def close(self) -> None:
        pass


def library(transport: Recording) -> Library:
    return Library(Exchange(transport, clock=VirtualClock()))


async def test_the_environment_never_overrides_our_address_or_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scripted() as consul:
        monkeypatch.setenv("CONSUL_HTTP_ADDR", "unix:///not/for/us:nor:this")
        monkeypatch.setenv("CONSUL_HTTP_TOKEN", "not-for-us")
        monkeypatch.setenv("CONSUL_HTTP_SSL", "true")
        transport = HttpTransport(Address.from_environment({}, consul.address))
        client = ConsulClient(transport, clock=VirtualClock(), token=lambda: "ours")
        with pytest.raises(UnexpectedAnswer):
            await client.leader()  # ``true`` is no address, but it came from our server
        await client.put("a", b"1")
        await client.close()
        assert [seen.headers["X-Consul-Token"] for seen in consul.seen] == ["ours", "ours"]


def test_it_can_be_built_outside_of_a_loop_and_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        library(Recording())


async def test_rare_calls_share_the_pooled_connection_of_the_others() -> None:
    async def answer(seen: Seen) -> web.StreamResponse:
        if seen.target.startswith("/v1/status"):
            return json_answer('"127.0.0.1:8300"')
        if seen.target.startswith("/v1/agent"):
            return json_answer('{"Config":{"NodeName":"n1","Version":"1.8.7"},"Member":{}}')
        return json_answer("[]")

    async with Scripted(answer) as consul:
        client = connect({"CONSUL_HTTP_ADDR": consul.address}, VirtualClock())
        assert await client.leader() == "127.0.0.1:8300"
        own = (await client.agent()).config
        assert (own.version, own.node_name) == ("1.8.7", "n1")
        assert await client.session_info("s") is None
        assert (await client.list("a")).items == []
        await client.close()
        assert consul.connections == 2, "what concerns sessions has a connection of its own (R1)"


async def test_a_long_poll_may_take_longer_than_consul_holds_it_and_others_are_short() -> None:
    transport = Recording()
    client = ConsulClient(transport, clock=VirtualClock())
    await client.list("a", index=9, wait=600)
    await client.list("a", index=9, wait=0.5)
    await client.list("a", index=9)
    await client.list("a")
    transport._response = Response(200, transport._response.headers, b'[{"ID":"s"}]')
    await client.renew_session("s")
    await client.session_info("s")
    assert [round(allowed, 3) for _, allowed in transport.sent] == [647.5, 10.531, 328.75, 10.0, 3.0, 3.0]
    assert dict(transport.sent[0][0].params) == {"recurse": "", "index": "9", "wait": "600000ms"}


@pytest.mark.parametrize(("header", "index"), [({"x-consul-index": "42"}, 42), ({}, 0)])
async def test_an_index_is_a_number_and_its_absence_is_zero(header: dict[str, str], index: int) -> None:
    page = await ConsulClient(Recording(header), clock=VirtualClock()).list("a")
    assert page.index == index
    assert isinstance(page.index, int)
    found = await library(Recording(header)).session.info("s")  # the library itself raises KeyError
    assert found == (str(index), None)


@pytest.mark.parametrize("text", ["", "-1", "1e3", "abc"])
async def test_an_index_that_is_no_number_is_unexpected(text: str) -> None:
    with pytest.raises(UnexpectedAnswer, match="X-Consul-Index"):
        await ConsulClient(Recording({"x-consul-index": text}), clock=VirtualClock()).list("a")


async def test_404_keeps_the_index_and_is_absence() -> None:
    client = ConsulClient(Recording({"x-consul-index": "9"}, b"", 404), clock=VirtualClock())
    assert await client.get("a") == (9, None)
    assert await client.read("a") is None
    assert (await client.list("a")).index == 9
    assert (await client.keys("a")).items == []


async def test_what_the_library_cannot_read_is_unexpected_and_not_its_own_error() -> None:
    with pytest.raises(UnexpectedAnswer):
        await library(Recording(body=b"<html>")).agent.self()
    with pytest.raises(UnexpectedAnswer):
        await ConsulClient(Recording(body=b'{"Config":{}}'), clock=VirtualClock()).agent()


async def test_a_rotated_token_file_is_used_by_the_next_request(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    async with Scripted() as consul:
        env = {"CONSUL_HTTP_ADDR": consul.address, "CONSUL_HTTP_TOKEN_FILE": str(path)}
        client = connect(env, VirtualClock())
        await client.put("a", b"1")
        replacement = tmp_path / "new"
        replacement.write_text("second")
        replacement.replace(path)
        await client.put("a", b"1")
        await client.close()
        assert [seen.headers["X-Consul-Token"] for seen in consul.seen] == ["first", "second"]
        assert not any("token" in seen.target for seen in consul.seen)
