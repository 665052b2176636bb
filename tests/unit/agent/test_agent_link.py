"""What an agent tells of itself reaches the store, also where Consul fails meanwhile (R21)."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from farmd.agent.link import Contact, Link
from farmd.agent.model import AgentConfig
from farmd.agent.state import StateDirectory
from farmd.observe.recorder import Metrics
from store import codec, registration
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import StoreUnavailable
from store.keys import Keys
from store.nodes import Agent
from store.ports import Request
from tests.toys import Faulty, is_transaction
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys()
TTL = 12.0


async def fails(request: Request) -> None:
    """The server takes no transaction."""
    if is_transaction(request):
        raise StoreUnavailable("no answer")


async def test_r20_news_that_consul_did_not_take_are_told_again_at_once(tmp_path: Path) -> None:
    """Farms place pods on a node until its agent has told that it starts none."""
    clock, why = VirtualClock(), [""]
    transport = Faulty(InProcessTransport(embedded_server(clock)))
    client = ConsulClient(transport, clock=clock)
    await registration.register_cluster(client, KEYS, SeededIds())
    state = StateDirectory(tmp_path)
    link = Link(
        AgentConfig(node="n1", state_dir=tmp_path, session_ttl=TTL),
        client=client,
        keys=KEYS,
        state=state,
        contact=Contact(clock, state, TTL),
        clock=clock,
        rng=random.Random(1),
        recorder=Metrics(CollectorRegistry()),
        any_workloads=lambda _: False,
        acted_on=lambda _: False,
        features=list,
        doubts=dict,
        trusts=lambda: None,
        closed=lambda: why[0],
        left=lambda: {"/trash/web.0": why[0]} if why[0] else {},
        denied=str,
        look=partial(asyncio.sleep, 0),
    )

    async def told() -> str:
        entry = await client.read(KEYS.agent("n1"))
        assert entry is not None
        agent = codec.decode(Agent, entry.value, entry.key)
        assert agent.left == ({"/trash/web.0": agent.closed} if agent.closed else {})
        return agent.closed

    running = asyncio.create_task(link.run())
    await clock.advance(5.0)
    assert await told() == ""
    why[0], transport.before = "its intents are not proven", fails
    link.doubt()
    await clock.advance(5.0)
    transport.before = None
    await clock.advance(TTL / 6)
    assert await told() == "its intents are not proven"
    transport.before = fails
    await client.delete(KEYS.agent("n1"))
    link.doubt()
    await clock.advance(5.0)
    transport.before = None
    await clock.advance(TTL / 6)
    assert await told() == "its intents are not proven"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
