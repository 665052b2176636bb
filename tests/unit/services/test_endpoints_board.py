"""A farm's answers for the endpoints of services, in virtual time on the embedded server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.commands.mutation import Call, commit
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.runtime.wake import Wake
from farmd.services import board as boards
from farmd.services import commands
from farmd.services.board import LINGER_SECONDS, Board, EndpointsAnswer, NotKnown, Sightings, TooManyWaiting
from farmd.services.endpoints import Endpoint, Sighting, serving
from store import codec
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import NotFound, StoreUnavailable
from store.families import SERVICES
from store.ports import Request
from store.rcs import ReplicationController
from store.reality import Intent
from store.registration import register_cluster
from store.services import Service, ServiceStore, reference
from store.watch import BACKOFF_LIMIT
from tests.people import KEYS, CountedIds
from tests.services import agent, controller, pod, service
from tests.toys import Faulty
from tests.virtual import VirtualClock, embedded_server


@dataclass
class Post:
    """A farm's board, and somebody who changes the store; ``farm`` are the requests of the farm."""

    call: Call
    clock: VirtualClock
    board: Board
    farm: Faulty
    rc: ReplicationController
    caches: Caches

    def ask(self, index: int = 0, wait: float = 60.0, name: str = "web") -> asyncio.Task[EndpointsAnswer]:
        return asyncio.create_task(self.board.answer(name, index, wait))

    async def answer(self, name: str = "web") -> EndpointsAnswer:
        await self.clock.advance(1.0)  # what was written before is seen by then
        asked = self.ask(name=name)
        await self.clock.advance(1.0)
        assert asked.done()
        return asked.result()

    async def nodes(self) -> list[str]:
        return [each.node for each in (await self.answer()).endpoints]

    async def changed(self, asked: asyncio.Task[EndpointsAnswer], within: float) -> EndpointsAnswer:
        """The answer, which comes at most so many seconds later."""
        await self.clock.advance(within)
        assert asked.done()
        return asked.result()


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    """A farm that sees pods of ``web`` on n1, which is available, and n2, which fails."""
    clock = VirtualClock()
    server = embedded_server(clock)
    client = ConsulClient(InProcessTransport(server), clock=clock)
    cluster = await register_cluster(client, KEYS, CountedIds())
    call = Call(client, KEYS, clock, CountedIds(), "user/ada@desk")
    rc = await controller(call, min_healthy_time=10)
    for node in ("n1", "n2"):
        await agent(call, node)
    await pod(call, rc, "n1", port=20001)
    await pod(call, rc, "n2", port=20002, state="critical")
    await service(call, "web")
    farm, rng = Faulty(InProcessTransport(server)), random.Random(1)
    theirs = ConsulClient(farm, clock=clock)
    caches = Caches(theirs, KEYS, cluster, clock, rng, Progress(clock, Metrics(CollectorRegistry())))
    board = Board(theirs, KEYS, caches, FleetIndex(caches, KEYS), clock)
    running = asyncio.create_task(caches.run())
    await clock.advance(1.0)
    yield Post(call, clock, board, farm, rc, caches)
    await board.close()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await client.close()


async def test_it_answers_at_once_and_again_as_soon_as_a_pod_is_available_or_not(post: Post) -> None:
    first = await post.answer()
    assert [(each.address, each.port) for each in first.endpoints] == [("n1.test", 20001)]
    waiting = post.ask(first.index)
    await pod(post.call, post.rc, "n2", port=20002)
    await post.clock.advance(9.0)
    assert not waiting.done()  # healthy, and not available yet (R22)
    second = await post.changed(waiting, 2.0)
    assert [each.node for each in second.endpoints] == ["n1", "n2"]
    waiting = post.ask(second.index)
    await post.clock.advance(5.0)
    await pod(post.call, post.rc, "n1", port=20001, state="critical")
    assert [each.node for each in (await post.changed(waiting, 0.6)).endpoints] == ["n2"]


async def test_equal_endpoints_have_one_index_on_every_farm_and_a_wait_ends_with_them(post: Post) -> None:
    first = await post.answer()
    asked = post.ask(first.index, wait=30.0)
    await post.clock.advance(29.0)
    assert not asked.done()
    assert (await post.changed(asked, 1.5)).index == first.index
    assert (await post.changed(post.ask(first.index + 1, wait=30.0), 0.0)).index == first.index


async def test_a_switch_reaches_those_who_wait_in_one_answer(post: Post) -> None:
    """Blue-green: ``active`` names another controller, and no answer lies between."""
    green = await controller(post.call, "green", min_healthy_time=0)
    await agent(post.call, "n3")
    await pod(post.call, green, "n3", port=20003, instance="green")
    first = await post.answer()
    waiting = post.ask(first.index)
    store = ServiceStore(post.call.client, KEYS)
    stored = await store.find("web")
    await post.call.client.transaction([store.activate(stored, [reference("rcs", green.id)])])
    assert [each.node for each in (await post.changed(waiting, 0.1)).endpoints] == ["n3"]


async def test_no_such_service_is_said_also_to_those_who_wait_for_one_that_is_deleted(post: Post) -> None:
    with pytest.raises(NotFound, match="service 'nope' does not exist"):
        await post.answer("nope")
    waiting = post.ask((await post.answer()).index)
    await commit(post.call, await commands.delete(post.call, "web"))
    with pytest.raises(NotFound, match="service 'web' does not exist"):
        await post.changed(waiting, 0.1)
    await service(post.call, "web", port="admin")
    assert [each.port for each in (await post.answer()).endpoints] == [21001]


async def test_r15_after_a_restore_of_the_store_the_services_are_read_anew(post: Post) -> None:
    first = await post.answer()
    waiting = post.ask(first.index)
    await post.clock.advance(0.1)

    def whole_reads() -> int:
        return sum("/services/" in each.path and ("consistent", "") in each.params for each in post.farm.sent)

    before = whole_reads()
    anew = asyncio.create_task(post.caches.begin_anew())
    await post.clock.advance(5.0)
    assert anew.done()
    assert whole_reads() == before + 1
    await pod(post.call, post.rc, "n1", port=20001, state="critical")
    assert (await post.changed(waiting, 1.0)).endpoints == ()


async def test_r18_doubt_takes_no_endpoint_away(post: Post) -> None:
    first = await post.answer()
    waiting = post.ask(first.index, wait=20.0)
    keys, client = KEYS, post.call.client
    sentinels = {tree: keys.sentinel(keys.tree(tree)) for tree in ("services", "pods", "rcs")}
    kept = {tree: await client.read(key) for tree, key in sentinels.items()}
    for tree in sentinels:
        await client.delete(keys.tree(tree), recurse=True)
    await post.clock.advance(10.0)
    assert not waiting.done()
    assert (await post.changed(waiting, 11.0)) == first
    for tree, entry in kept.items():
        assert entry is not None
        await client.put(sentinels[tree], entry.value)  # now it is true that nothing is left
    await post.clock.advance(BACKOFF_LIMIT * 1.5)  # trees that are in doubt are read again after a pause
    with pytest.raises(NotFound):
        await post.answer()


async def test_r21_absent_agents_take_the_last_endpoint_away_from_nobody(post: Post) -> None:
    await pod(post.call, post.rc, "n2", port=20002)
    await post.answer()
    await post.clock.advance(11.0)
    assert await post.nodes() == ["n1", "n2"]
    await post.call.client.delete(KEYS.agent("n1"))
    assert await post.nodes() == ["n2"]
    await post.call.client.delete(KEYS.agent("n2"))
    assert await post.nodes() == ["n2"]
    await agent(post.call, "n1")
    assert await post.nodes() == ["n1"]


async def test_pods_that_another_farm_placed_serve_as_soon_as_they_are_available(post: Post) -> None:
    """Of other farms' pods and intents this farm learns ten seconds later, of what agents say at once."""
    green = await controller(post.call, "green", min_healthy_time=0)
    await service(post.call, "green", name="green")
    first = await post.answer("green")
    assert first.endpoints == ()
    waiting = post.ask(first.index, name="green")
    await agent(post.call, "n3")
    await pod(post.call, green, "n3", instance="green")
    assert [each.node for each in (await post.changed(waiting, 1.0)).endpoints] == ["n3"]


async def test_r22_a_pod_that_is_to_stop_is_an_endpoint_only_where_no_other_is_left(post: Post) -> None:
    await pod(post.call, post.rc, "n2", port=20002)
    await post.clock.advance(11.0)
    first = await post.answer()
    assert [each.node for each in first.endpoints] == ["n1", "n2"]
    waiting = post.ask(first.index)
    await post.call.client.put(KEYS.intent("n1", "hello"), codec.encode(Intent("f" * 64, post.rc.id)))
    assert [each.node for each in (await post.changed(waiting, 11.0)).endpoints] == ["n2"]
    await post.call.client.delete(KEYS.intent("n2", "hello"))
    assert await post.nodes() == ["n1", "n2"]  # both still serve
    await pod(post.call, post.rc, "n1", port=20001, phase="stopping", leaves_until=5.0)
    assert await post.nodes() == ["n1", "n2"]
    await pod(post.call, post.rc, "n1", port=20001, phase="stopping")
    assert await post.nodes() == ["n2"]  # it has got its signal


async def test_a_farm_that_begins_takes_what_is_healthy_for_available(post: Post) -> None:
    """The pod on n1 became healthy a second before this farm read it for the first time."""
    assert await post.nodes() == ["n1"]


async def test_the_owner_that_is_gone_has_no_endpoints(post: Post) -> None:
    await post.call.client.delete(KEYS.record("rcs", post.rc.id))
    assert (await post.answer()).endpoints == ()


async def test_it_costs_nothing_while_nobody_asks(post: Post) -> None:
    def asked() -> int:
        return sum(each.path.startswith(f"/v1/kv/{tree}") for each in post.farm.sent for tree in trees)

    trees = [KEYS.tree(tree) for tree in ("services", "reality")]
    quiet = asked()
    await post.clock.advance(120.0)
    idle = asked() - quiet
    await post.answer()
    await post.clock.advance(2 * LINGER_SECONDS)
    before = asked()
    await pod(post.call, post.rc, "n1", port=20001, state="critical")
    await post.clock.advance(120.0)
    assert asked() - before <= idle + 1  # only the caches' own
    assert await post.nodes() == []


async def test_who_asks_again_and_again_for_what_does_not_exist_costs_no_query(post: Post) -> None:
    before = len(post.farm.sent)
    for _ in range(40):
        with pytest.raises(NotFound):
            await post.answer("nope")
    assert sum("/services" in each.path for each in post.farm.sent[before:]) <= 4  # the caches' own


async def test_what_began_while_somebody_asked_for_another_service_is_known(post: Post) -> None:
    with pytest.raises(NotFound):
        await post.answer("nope")
    await pod(post.call, post.rc, "n2", port=20002)
    await post.clock.advance(11.0)
    with pytest.raises(NotFound):
        await post.answer("nope")
    await agent(post.call, "n3")
    await pod(post.call, post.rc, "n3", port=20003)
    await post.clock.advance(11.0)
    assert await post.nodes() == ["n1", "n2", "n3"]


async def test_many_who_wait_cost_no_more_than_one(post: Post) -> None:
    first = await post.answer()
    before = len(post.farm.sent)
    waiting = [post.ask(first.index) for _ in range(200)]
    await post.clock.advance(5.0)
    assert len(post.farm.sent) - before <= 2
    await pod(post.call, post.rc, "n1", port=20001, state="critical")
    await post.clock.advance(1.0)
    assert {task.result().endpoints for task in waiting} == {()}


async def test_there_is_a_limit_to_those_who_wait_and_who_hangs_up_frees_a_place(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOST_WAITING", 2)
    first = await post.answer()
    waiting = [post.ask(first.index) for _ in range(2)]
    await post.clock.advance(0.1)
    with pytest.raises(TooManyWaiting, match="ask another farm, or try again later"):
        await post.board.answer("web", first.index, 1.0)
    waiting[0].cancel()
    await post.clock.advance(0.1)
    assert (await post.answer()) == first


async def test_there_is_a_limit_to_the_names_that_are_followed(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await post.answer()
    monkeypatch.setattr(boards, "MOST_ASKED", 1)
    with pytest.raises(
        TooManyWaiting, match="1 names are already watched here; ask another farm, or try again later"
    ):
        await post.board.answer("another", 0, 1.0)
    assert (await post.answer()) == first


async def test_those_who_wait_are_answered_when_the_farm_stops(post: Post) -> None:
    first = await post.answer()
    waiting = post.ask(first.index)
    await post.clock.advance(0.1)
    await post.board.close()
    assert (await post.changed(waiting, 0.0)) == first
    with pytest.raises(NotKnown, match="this farm stops"):
        await post.board.answer("web", 0, 0.0)


async def test_a_store_that_does_not_answer_is_no_answer(post: Post) -> None:
    await post.call.client.delete(KEYS.sentinel(KEYS.tree(SERVICES.name)))
    await post.clock.advance(1.0)
    asked = post.ask(wait=0.0, name="cart")
    await post.clock.advance(11.0)
    with pytest.raises(NotKnown, match="services: the answer lacks the sentinel"):
        asked.result()


async def test_a_record_that_does_not_decode_keeps_the_endpoints(post: Post) -> None:
    first = await post.answer()
    stored = await ServiceStore(post.call.client, KEYS).find("web")
    await post.call.client.put(stored.key, b"{")
    assert await post.answer() == first
    await post.call.client.put(stored.key, codec.encode(stored.record))
    await post.call.client.put(KEYS.record("rcs", post.rc.id), b"{")
    assert await post.answer() == first


async def test_a_port_that_cannot_be_read_is_read_again(post: Post) -> None:
    async def refuse(request: Request) -> None:
        if "/reality/" in request.path:
            raise StoreUnavailable("no route")

    post.farm.before = refuse
    asked = post.ask()
    await post.clock.advance(1.0)
    assert not asked.done()
    post.farm.before = None
    assert len((await post.changed(asked, 2.0)).endpoints) == 1


@pytest.mark.parametrize("key", [KEYS.reality("n1", "hello"), KEYS.intent("n1", "hello")])
async def test_r22_what_is_said_of_a_pod_and_does_not_decode_takes_no_endpoint_away(
    post: Post, key: str
) -> None:
    assert await post.nodes() == ["n1"]
    before = await post.call.client.read(key)
    assert before is not None
    await post.call.client.put(key, b"{")
    await pod(post.call, post.rc, "n2", port=20002)
    await post.clock.advance(12.0)
    assert await post.nodes() == ["n1", "n2"]
    await post.call.client.delete(key)
    await post.clock.advance(2.0)
    assert await post.nodes() == ["n2"]


async def test_an_agent_that_comes_or_goes_concerns_the_services_of_its_node_alone(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await controller(post.call, "cart", min_healthy_time=0)
    await agent(post.call, "n9")
    await pod(post.call, other, "n9", port=20009)
    await service(post.call, "cart", name="cart")
    looked: list[str] = []
    look = Sightings.look

    async def counted(self: Sightings, service: Service, wake: Wake) -> object:
        looked.append(service.name)
        return await look(self, service, wake)

    monkeypatch.setattr(Sightings, "look", counted)
    first, second = await post.answer("web"), await post.answer("cart")
    waiting = [post.ask(first.index, name="web"), post.ask(second.index, name="cart")]
    await post.clock.advance(15.0)
    looked.clear()
    for node in ("n8", "n9"):
        await post.call.client.delete(KEYS.agent(node))
        await post.clock.advance(2.0)
        await agent(post.call, node)
        await post.clock.advance(2.0)
    assert "cart" in looked
    assert "web" not in looked
    for asked in waiting:
        asked.cancel()


def test_a_pod_that_leaves_takes_no_place_from_pods_whose_agents_are_absent() -> None:
    a, b = (Endpoint(node, "web", "rcs/1", "10.0.0.1", 80) for node in ("a", "b"))
    before = serving([Sighting(a, unknown=True), Sighting(b, leaving=True)], (a, b))
    assert before == (a, b)
    assert serving([Sighting(a, unknown=True)], before) == (a,)
    assert serving([Sighting(a, available=True), Sighting(b, leaving=True)], before) == (a,)
