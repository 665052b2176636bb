"""What tests of farmctl share, and those of rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.agents import Agents, agents_on
from tests.farmctl import embedded
from tests.fleet import cluster_on
from tests.obedient import Obedient, obedient
from tests.rolling import Rolling


@pytest.fixture(scope="session", autouse=True)
def forking() -> None:
    """No test's event loop waits for the imports of the process that is forked."""
    forked.ready()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """``host:port`` of a built-in server: keep to a prefix of your own."""
    with embedded() as found:
        yield found


@pytest.fixture
async def rolling(consul_dev: str) -> AsyncIterator[Rolling]:
    """A cluster of its own on real Consul, where a controller is rolled."""
    async with cluster_on(consul_dev) as cluster:
        yield Rolling(cluster, consul_dev)


@pytest.fixture
async def agents(rolling: Rolling) -> AsyncIterator[Obedient]:
    """Agents without machines, which obey."""
    async with obedient(rolling.cluster) as acting:
        yield acting


@pytest.fixture
async def rig(consul_dev: str, tmp_path: Path) -> AsyncIterator[Agents]:
    """A cluster of its own on real Consul, with real agents in this process."""
    async with agents_on(consul_dev, tmp_path) as made:
        yield made
