"""A cluster of its own for each test of daemon sets, with a farm and agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.fleet import Cluster, RunningFarm, cluster_on, in_time, start_farm
from tests.integration.daemonset.sets import KINDS


@pytest.fixture
async def cluster(consul_dev: str) -> AsyncIterator[Cluster]:
    async with cluster_on(consul_dev) as made:
        yield made


@pytest.fixture
async def farm(cluster: Cluster) -> AsyncIterator[RunningFarm]:
    running = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS)
    yield running
    await running.close()


@pytest.fixture
async def agents(cluster: Cluster) -> AsyncIterator[None]:
    """Nodes obey, and everything that they run is healthy."""
    stop = asyncio.Event()
    obeying = asyncio.create_task(cluster.obey(stop))
    yield
    stop.set()
    await in_time(obeying)
