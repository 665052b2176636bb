"""R7, R23: one parked query on the locks serves all kinds of a farm; none of them can blind the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from farmd.farm.locking import LONGEST_REST, REFUSED_LIMIT, HeldLocks, LockTree
from farmd.kinds import KINDS
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from store import codec
from store.consul.client import ConsulClient
from store.embedded.server import EmbeddedServer, InProcessTransport
from store.errors import StoreUnavailable
from store.keys import Keys
from store.ports import Lane, Request, Response
from store.rcs import ReplicationController
from store.registration import register_cluster
from tests.fleet import begin_farm
from tests.toys import Faulty
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys("t/")
PARKED_AT_MOST = 64  # R23


class Parking(Faulty):
    """Knows which blocking queries are parked now."""

    def __init__(self, inner: InProcessTransport) -> None:
        super().__init__(inner)
        self.parked: list[str] = []
        self.most = 0

    async def send(self, request: Request, timeout: float) -> Response:
        if request.lane is not Lane.WATCH:
            return await super().send(request, timeout)
        self.parked.append(request.path)
        self.most = max(self.most, len(self.parked))
        try:
            return await super().send(request, timeout)
        finally:
            self.parked.remove(request.path)


class Rig:
    """A lock tree with two kinds, on virtual time."""

    async def set_up(self) -> None:
        self.clock = VirtualClock()
        self.server = embedded_server(self.clock)
        self.people = ConsulClient(InProcessTransport(self.server), clock=self.clock)
        self.cluster = await register_cluster(self.people, KEYS, SeededIds())
        self.transport = Parking(InProcessTransport(self.server))
        client = ConsulClient(self.transport, clock=self.clock)
        metrics = Metrics(CollectorRegistry())
        self.progress = Progress(self.clock, metrics)
        beat = self.progress.loop("watch", 180.0)
        self.tree = LockTree(client, KEYS, self.clock, random.Random(1), beat)
        self.told: list[str] = []
        self.rcs, self.nodes = self.kind("rcs"), self.kind("nodes")
        self.task = asyncio.create_task(self.tree.run())
        await self.clock.advance(1.0)

    def kind(self, name: str) -> HeldLocks:
        return self.tree.of(name, lambda: self.told.append(name))

    async def lock(self, kind: str, item: str) -> None:
        await self.people.put(KEYS.lock(kind, item), b"farm/x/n")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.set_up()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_r23_one_query_tells_each_kind_of_its_own(rig: Rig) -> None:
    await rig.lock("rcs", "00aa")
    await rig.lock("nodes", "n1")
    await rig.clock.advance(1.0)
    assert (rig.rcs.items, rig.nodes.items) == ({"00aa"}, {"n1"})
    assert rig.transport.parked == [f"/v1/kv/{KEYS.tree('locks')}"]
    await rig.people.delete(KEYS.lock("nodes", "n1"))
    await rig.clock.advance(1.0)
    assert (rig.rcs.items, rig.nodes.items) == ({"00aa"}, set())


async def test_r9_every_kind_hears_of_a_hand_over_which_changes_no_key(rig: Rig) -> None:
    await rig.lock("rcs", "00aa")
    await rig.clock.advance(1.0)
    rig.told.clear()
    rig.rcs.moved = False
    await rig.people.put(KEYS.lock("rcs", "00aa"), b"farm/y/n")
    await rig.clock.advance(1.0)
    assert rig.rcs.moved
    assert set(rig.told) == {"rcs", "nodes"}


async def test_r7_the_watch_rests_while_a_kind_takes_locks(rig: Rig) -> None:
    with rig.rcs.claiming():
        await rig.lock("rcs", "00aa")
        await rig.clock.advance(LONGEST_REST / 4)
        asked = len(rig.transport.sent)
        for item in ("00ab", "00ac", "00ad"):
            await rig.lock("rcs", item)
            await rig.clock.advance(LONGEST_REST / 8)
        assert len(rig.transport.sent) == asked
    await rig.clock.advance(0.2)
    assert rig.rcs.items == {"00aa", "00ab", "00ac", "00ad"}
    assert len(rig.transport.sent) <= asked + 2


async def test_r7_two_kinds_take_at_once_and_the_watch_rests_until_both_have(rig: Rig) -> None:
    with rig.nodes.claiming():
        with rig.rcs.claiming():
            await rig.lock("rcs", "00aa")
            await rig.clock.advance(0.2)
        await rig.lock("rcs", "00ab")
        await rig.clock.advance(0.2)
        assert rig.rcs.items == {"00aa"}
    await rig.clock.advance(0.2)
    assert rig.rcs.items == {"00aa", "00ab"}


async def test_r7_a_kind_that_hangs_while_it_takes_does_not_blind_the_others(rig: Rig) -> None:
    with rig.rcs.claiming():
        await rig.lock("nodes", "n1")
        await rig.clock.advance(LONGEST_REST)
        await rig.lock("nodes", "n2")
        await rig.clock.advance(2 * LONGEST_REST)
        assert rig.nodes.items == {"n1", "n2"}


async def test_r20_an_answer_without_the_sentinel_tells_no_kind_anything(rig: Rig) -> None:
    await rig.lock("rcs", "00aa")
    await rig.clock.advance(1.0)
    await rig.people.delete(KEYS.tree("locks"), recurse=True)
    await rig.clock.advance(1.0)
    assert (rig.rcs.items, rig.nodes.items) == (None, None)


async def test_an_outage_is_no_stalled_loop(rig: Rig) -> None:
    async def cut(request: Request) -> None:
        raise StoreUnavailable("cut off")

    rig.transport.before = cut
    await rig.people.put(KEYS.lock("rcs", "00aa"), b"")
    await rig.clock.advance(600.0)
    assert rig.progress.stalled() == []


async def test_a_look_that_was_overtaken_takes_nothing_back(rig: Rig) -> None:
    """A kind's own look at the locks comes back after the parked query has told something newer."""
    late = asyncio.Event()

    async def hold(request: Request, response: Response) -> None:
        if request.lane is not Lane.WATCH:
            await late.wait()

    rig.transport.after = hold
    looking = asyncio.create_task(rig.tree.look())
    await rig.clock.settle()
    await rig.lock("rcs", "00aa")
    await rig.clock.advance(1.0)
    late.set()
    await looking
    assert rig.rcs.items == {"00aa"}


async def test_r6_a_lock_that_is_refused_for_days_is_looked_into_every_few_seconds(rig: Rig) -> None:
    for _ in range(3000):
        rig.rcs.refused()
    due = rig.rcs.due_in()
    assert due is not None
    assert REFUSED_LIMIT / 2 < due < 2 * REFUSED_LIMIT


# -- the whole farm ------------------------------------------------------------------------------
async def fill(client: ConsulClient, count: int) -> None:
    """Enough of everything that is sharded for each of its trees to be watched by sixteen queries."""
    ids = SeededIds(9)
    for number in range(count):
        rc = ReplicationController(id=ids.new(), name=f"n{number}", manifest="m", replicas_desired=0)
        await client.put(KEYS.record("rcs", rc.id), codec.encode(rc))
        await client.put(KEYS.pod(rc.id, f"node-{number}", "app"), b'{"manifest":"m"}')
        await client.put(KEYS.reality(f"node-{number}", "app"), b'{"manifest":"m","owner":"x"}')


async def queries(server: EmbeddedServer, clock: VirtualClock) -> tuple[list[str], int]:
    """What a farm with all kinds parks, once its trees have grown: now, and at most."""
    transport = Parking(InProcessTransport(server))
    client = ConsulClient(transport, clock=clock)
    running = await begin_farm(client, "a", keys=KEYS, clock=clock, ids=SeededIds(5), kinds=KINDS)
    try:
        await clock.advance(30.0)
        assert running.farm.ready.is_set()
        return list(transport.parked), transport.most
    finally:
        running.stop.set()
        await clock.advance(1.0)
        await running.task


async def test_r23_a_farm_with_all_kinds_stays_within_the_budget_of_parked_queries() -> None:
    clock = VirtualClock()
    server = embedded_server(clock)
    people = ConsulClient(InProcessTransport(server), clock=clock)
    await register_cluster(people, KEYS, SeededIds())
    await fill(people, 1100)
    parked, most = await queries(server, clock)
    assert [path for path in parked if KEYS.tree("locks") in path] == [f"/v1/kv/{KEYS.tree('locks')}"]
    assert len(parked) == most == 63
    assert most <= PARKED_AT_MOST
