"""The simulated agents of fault tests: they end a pod only when its intent is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from store.reality import Intent
from tests.fault.falling import Agents
from tests.fleet import Cluster
from tests.virtual import VirtualClock, embedded_client

PLACE = ("n1", "web")
LONGER_THAN_ANY_WAIT = 700.0


@pytest.fixture
async def agents(clock: VirtualClock) -> AsyncIterator[Agents]:
    """Agents that have started one pod."""
    cluster = Cluster(embedded_client(clock))
    await cluster.register()
    agents = Agents(cluster)
    acting = asyncio.create_task(agents.run())
    await cluster.put(cluster.keys.intent(*PLACE), Intent(manifest="v1", owner="rc"))
    await clock.settle()
    yield agents
    acting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await acting


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def realities(agents: Agents) -> list[str]:
    return list(await agents.cluster.entries(agents.cluster.keys.tree("reality")))


async def test_a_pod_serves_on_when_a_wait_for_changes_ends_without_one(
    agents: Agents, clock: VirtualClock
) -> None:
    before = await realities(agents)
    assert before == [agents.cluster.keys.reality(*PLACE)]
    await clock.advance(LONGER_THAN_ANY_WAIT)
    assert await realities(agents) == before
    assert [(place, owner, sha) for _, place, owner, sha in agents.served] == [(PLACE, "rc", "v1")]


async def test_a_pod_ends_when_its_intent_is_removed(agents: Agents, clock: VirtualClock) -> None:
    await agents.cluster.client.delete(agents.cluster.keys.intent(*PLACE))
    await clock.settle()
    assert await realities(agents) == []
    assert agents.served[-1][1:] == (PLACE, "", "")
