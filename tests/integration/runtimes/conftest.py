"""Real agents with a real engine for containers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from farmd.agent.model import ContainerConfig
from tests.agents import Agents, agents_on
from tests.engine import EngineMissing, PodmanEngine


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[PodmanEngine]:
    try:
        engine = PodmanEngine()
    except EngineMissing as error:
        pytest.fail(str(error), pytrace=False)
    with engine:
        yield engine


@pytest.fixture
def engine(shared_engine: PodmanEngine) -> Iterator[PodmanEngine]:
    yield shared_engine
    shared_engine.run("rm", "--all", "--force", "--time", "0")


@pytest.fixture
async def rig(consul_dev: str, tmp_path: Path, engine: PodmanEngine) -> AsyncIterator[Agents]:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    async with agents_on(consul_dev, tmp_path) as made:
        made.container = ContainerConfig(
            engine=engine.url, allow=(str(tmp_path / "shared"),), secrets_dir=secrets
        )
        yield made
