"""R19: the lack of a leader binds a farm alone, and only while its session is not renewed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from farmd.failsafe.evidence import NO_LEADER
from farmd.farm.plan import FarmSettings
from farmd.observe.progress import Progress
from farmd.process.farm_service import wire_farm
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import NoLeader
from store.keys import Keys
from store.ports import Request
from tests.fleet import Inbox
from tests.recorders import CountingRecorder
from tests.toys import Faulty
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys()
TTL, THAW = 10.0, 20.0


class World:
    """One farm. ``leaderless`` tells of a request whether the server that gets it hears no leader."""

    async def set_up(self) -> None:
        self.clock = VirtualClock()
        self.transport = Faulty(InProcessTransport(embedded_server(self.clock)))
        self.client = ConsulClient(self.transport, clock=self.clock)
        recorder = CountingRecorder()
        self.farm = await wire_farm(
            settings=FarmSettings(name="a", ttl=TTL),
            client=self.client,
            keys=KEYS,
            clock=self.clock,
            rng=random.Random(1),
            ids=SeededIds(),
            recorder=recorder,
            progress=Progress(self.clock, recorder),
            alerter=Inbox(),
            kinds=("rcs",),
            thaw_after=THAW,
        )
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(self.farm.start(self._stop))
        await self.clock.advance(5.0)
        assert self.farm.ready.is_set()

    async def ask_servers_without_a_leader(self, seconds: float, *, renewals: bool) -> None:
        """All parked queries end, and for a while no tree can be read; perhaps no session renewed either."""

        async def refuse(request: Request) -> None:
            if renewals or request.path.startswith("/v1/kv/"):
                raise NoLeader("list: 500 No cluster leader")

        self.transport.before = refuse
        self.client.drop_parked()
        await self.clock.advance(seconds)
        self.transport.before = None

    async def recorded(self) -> bool:
        return await self.client.read(KEYS.failsafe("rcs")) is not None

    async def close(self) -> None:
        self._stop.set()
        await self.clock.advance(5.0)
        await self.task


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.set_up()
    yield made
    await made.close()


async def test_r19_a_server_without_a_leader_freezes_nothing_while_the_session_is_renewed(
    world: World,
) -> None:
    await world.ask_servers_without_a_leader(3 * TTL, renewals=False)
    assert world.farm.guards["rcs"].frozen() is None
    await world.clock.advance(10.0)
    assert not await world.recorded()


async def test_r19_no_leader_freezes_this_farm_alone_until_its_session_is_in_force_again(
    world: World,
) -> None:
    await world.ask_servers_without_a_leader(TTL, renewals=True)
    assert world.farm.guards["rcs"].frozen() == NO_LEADER
    await world.clock.advance(THAW / 2)
    assert world.farm.guards["rcs"].frozen() is None, "what is planned now rests on later reads"
    assert not await world.recorded()
