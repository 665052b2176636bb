"""Another leader of Consul: parked queries do not wait for the old one, and its end is no restore (R23)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from store.consul.client import ConsulClient
from store.consul.exchange import RENEW_SECONDS
from store.embedded.server import InProcessTransport
from store.entry import Page, RawEntry
from store.errors import StoreUnavailable
from store.ports import Lane, Request, Response
from store.watch import LOOK_SECONDS, Leadership, follow
from tests.virtual import VirtualClock, embedded_server

OLD, NEW = "10.0.0.1:8300", "10.0.0.2:8300"
SOON = LOOK_SECONDS + 1.0


class Servers:
    """A server that passes queries on to ``leader``, and what it does with those that are parked.

    ``silent``: a query that is parked meanwhile is never answered. ``mute``: nothing is answered in time.
    ``stopped``: a parked query is answered at once, and tells nothing new.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._inner = InProcessTransport(embedded_server(clock))
        self._clock = clock
        self.leader: str | None = OLD
        self.silent = self.mute = False
        self.stopped = asyncio.Event()

    async def send(self, request: Request, timeout: float) -> Response:
        if self.mute and request.lane is not Lane.WATCH:
            await self._clock.sleep(timeout)
            raise StoreUnavailable("it took too long")
        if request.path == "/v1/status/leader":
            if self.leader is None:
                raise StoreUnavailable("refused")
            return Response(200, {"content-type": "application/json"}, f'"{self.leader}"'.encode())
        if request.lane is not Lane.WATCH:
            return await self._inner.send(request, timeout)
        if self.silent:
            await asyncio.Event().wait()
        answer = asyncio.create_task(self._inner.send(request, timeout))
        stopped = asyncio.create_task(self.stopped.wait())
        try:
            await asyncio.wait([answer, stopped], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            index = dict(request.params)["index"]
            return Response(200, {"content-type": "application/json", "x-consul-index": index}, b"[]")
        finally:
            answer.cancel()
            stopped.cancel()

    async def close(self) -> None:
        await self._inner.close()


class World:
    """One process that follows ``a/``; ``told`` are the values that it saw, ``restores`` counts signs."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.servers = Servers(self.clock)
        self.client = ConsulClient(self.servers, clock=self.clock)
        self.leadership = Leadership(self.client, self.clock)
        self.told: list[bytes] = []
        self.restores = 0
        self.reads = 0

    @contextmanager
    def following(self) -> Iterator[None]:
        tasks = [asyncio.create_task(self.leadership.run()), asyncio.create_task(self._follow())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def _follow(self) -> None:
        async def query(index: int, wait: float) -> Page[RawEntry]:
            self.reads += not index
            return await self.client.list("a/", index=index, wait=wait)

        def restored() -> None:
            self.restores += 1

        clock, rng = self.clock, random.Random(1)
        async for page in follow(
            query, name="a", clock=clock, rng=rng, on_restore=restored, leadership=self.leadership
        ):
            self.told += [raw.decoded() for raw in page.items]

    async def stop_leader(self) -> None:
        """Clean: parked queries end early. Somebody writes before they are sent again."""
        self.servers.stopped.set()
        await self.clock.settle()
        self.servers.stopped.clear()
        await self.client.put("a/1", b"2")


@pytest.fixture
async def world() -> World:
    made = World()
    await made.client.put("a/1", b"1")
    return made


async def test_r23_queries_that_wait_for_a_leader_that_went_silently_are_sent_again(world: World) -> None:
    world.servers.silent = True
    with world.following():
        await world.clock.advance(SOON)
        await world.client.put("a/1", b"2")
        world.servers.leader, world.servers.silent = NEW, False
        await world.clock.advance(SOON)
        assert world.told == [b"1", b"2"]


async def test_r23_queries_that_were_parked_before_a_silence_are_sent_again(world: World) -> None:
    """As behind an agent of Consul that turns to another server, because its own went silently."""
    world.servers.silent = True
    with world.following():
        await world.clock.advance(SOON)
        await world.client.put("a/1", b"2")
        world.servers.mute = True
        await world.clock.advance(SOON + RENEW_SECONDS)
        world.servers.mute = world.servers.silent = False
        await world.clock.advance(SOON)
        assert world.told == [b"1", b"2"]
        await world.clock.advance(2 * SOON)
        assert world.reads == 2


async def test_queries_stay_parked_while_the_leader_is_the_same_or_nobody_tells(world: World) -> None:
    with world.following():
        for leader in (OLD, "", None, OLD):
            world.servers.leader = leader
            await world.clock.advance(2 * LOOK_SECONDS)
        assert world.reads == 1


async def test_r23_the_clean_end_of_a_leader_is_no_restore(world: World) -> None:
    with world.following():
        await world.clock.advance(SOON)
        world.servers.leader = NEW
        await world.stop_leader()
        await world.clock.advance(1.0)
        assert (world.told, world.restores) == ([b"1", b"2"], 0)


@pytest.mark.parametrize("leader", [OLD, "", None])
async def test_r23_without_another_leader_a_wait_that_ends_early_tells_of_a_restore(
    world: World, leader: str | None
) -> None:
    with world.following():
        await world.clock.advance(SOON)
        world.servers.leader = leader
        await world.stop_leader()
        await world.clock.advance(1.0)
        assert (world.told, world.restores) == ([b"1", b"2"], 1)


async def test_r23_a_process_that_never_knew_the_leader_takes_an_early_end_for_a_restore(
    world: World,
) -> None:
    world.servers.leader = None
    with world.following():
        await world.clock.settle()
        world.servers.leader = NEW
        await world.stop_leader()
        await world.clock.advance(1.0)
        assert world.restores == 1
