"""A farm, and machines that run containers on a real engine with local images."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from farmd.agent.model import ContainerConfig, SigningConfig
from tests.agents import agents_on
from tests.engine import EngineMissing, PodmanEngine
from tests.farmctl import Farmctl
from tests.fleet import farm_on
from tests.projects import Sites

KINDS = ("rcs", "daemonsets", "deployments", "nodes")


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
    shared_engine.answer()
    shared_engine.clear()
    shared_engine.run("volume", "prune", "--force")


@pytest.fixture
def signing() -> SigningConfig | None:
    """Whose word a start on the machines needs; None: nobody's."""
    return None


@pytest.fixture
async def sites(
    consul_dev: str, tmp_path: Path, engine: PodmanEngine, signing: SigningConfig | None
) -> AsyncIterator[Sites]:
    secrets, shared = tmp_path / "secrets", tmp_path / "shared"
    secrets.mkdir()
    shared.mkdir()
    async with agents_on(consul_dev, tmp_path) as rig:
        rig.signing = signing
        rig.container = ContainerConfig(engine=engine.url, allow=(str(shared),), secrets_dir=secrets)
        async with farm_on(rig.client, "farm-1", keys=rig.keys, kinds=KINDS) as farm:
            for node in ("n1", "n2"):
                await rig.agent(node)
            yield Sites(rig, farm, Farmctl(consul_dev, rig.keys.prefix))
