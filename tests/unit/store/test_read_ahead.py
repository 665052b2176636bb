"""Reading ahead: several keys at once, each answered as it was when the reading began."""

from __future__ import annotations

import asyncio

import pytest

from store.consul.client import ConsulClient, ReadAhead
from store.embedded.server import InProcessTransport
from store.entry import Entry
from store.errors import StoreUnavailable
from store.ports import Request, Response
from tests.virtual import VirtualClock, embedded_server


class Held(InProcessTransport):
    """Answers reads only when ``so_many`` of them wait; ``broken`` keys cannot be read."""

    so_many, waiting, broken = 0, 0, ""

    async def send(self, request: Request, timeout: float) -> Response:
        if request.method == "GET":
            self.waiting += 1
            while self.waiting < self.so_many:
                await asyncio.sleep(0)
            if self.broken and request.path.endswith(self.broken):
                raise StoreUnavailable("cut")
        return await super().send(request, timeout)


@pytest.fixture
def line() -> Held:
    return Held(embedded_server(VirtualClock()))


async def test_keys_are_read_at_once_and_answered_as_they_were(line: Held) -> None:
    client = ConsulClient(line, clock=VirtualClock())
    await client.put("a", b"1")
    await client.put("b", b"2")
    line.so_many = 3
    async with ReadAhead(client, ["a", "b", "none"]) as ahead, asyncio.timeout(5):
        found = [await ahead.read("a"), await ahead.read("b"), await ahead.read("none")]
        await client.put("a", b"later")
        again = await ahead.read("a")
    assert [entry and entry.value for entry in found] == [b"1", b"2", None]
    assert again == found[0]
    assert line.waiting == 3


async def test_other_keys_and_consistent_reads_are_read_now(line: Held) -> None:
    client = ConsulClient(line, clock=VirtualClock())
    await client.put("a", b"1")
    async with ReadAhead(client, ["a"]) as ahead:
        await ahead.read("a")
        await client.put("a", b"2")
        now, fresh = await ahead.read("a", mode="consistent"), await ahead.read("b")
    assert now is not None
    assert (now.value, fresh) == (b"2", None)


async def test_a_key_of_which_the_caller_knows_what_is_there_is_not_read(line: Held) -> None:
    client = ConsulClient(line, clock=VirtualClock())
    await client.put("a", b"1")
    known = Entry("b", b"2", 7)
    async with ReadAhead(client, [], {"a": None, "b": known}) as ahead:
        assert await ahead.read("a") is None
        assert await ahead.read("b") is known
        assert line.waiting == 0
        assert await ahead.read("a", mode="consistent") is not None


async def test_after_the_end_of_its_block_every_key_is_read_now(line: Held) -> None:
    client = ConsulClient(line, clock=VirtualClock())
    await client.put("a", b"1")
    async with ReadAhead(client, ["a", "unasked"], {"absent": None}) as ahead:
        await ahead.read("a")
    for key, value in (("a", b"2"), ("unasked", b"3"), ("absent", b"4")):
        await client.put(key, value)
    found = [await ahead.read("a"), await ahead.read("unasked"), await ahead.read("absent")]
    assert [entry and entry.value for entry in found] == [b"2", b"3", b"4"]


async def test_a_read_that_fails_is_told_to_whoever_asks_and_to_nobody_else(line: Held) -> None:
    client = ConsulClient(line, clock=VirtualClock())
    await client.put("a", b"1")
    line.broken = "/bad"
    async with ReadAhead(client, ["a", "bad"]) as ahead:
        assert await ahead.read("a") is not None
        with pytest.raises(StoreUnavailable):
            await ahead.read("bad")
    async with ReadAhead(client, ["bad"]):
        pass
