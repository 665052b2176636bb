"""Real agents with a real engine for containers, or with systemd where the first process is systemd."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from farmd.agent.model import ContainerConfig, SystemdConfig
from tests.agents import Agents, agents_on
from tests.engine import EngineMissing, PodmanEngine
from tests.fleet import eventually
from tests.ports import free_ports
from tests.registry import Registry
from tests.systemd import INSIDE


@pytest.fixture(scope="session")
def shared_registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One that the engine knows, and that no test has started yet."""
    return Registry(tmp_path_factory.mktemp("registry"))


@pytest.fixture
def registry(shared_registry: Registry) -> Iterator[Registry]:
    """A real registry, which asks nobody for a login."""
    with shared_registry:
        yield shared_registry


@pytest.fixture(scope="session")
def odd_port() -> int:
    """The port of servers that the engine takes for registries, and that tests make as odd as they like."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def shared_engine(shared_registry: Registry, odd_port: int) -> Iterator[PodmanEngine]:
    try:
        engine = PodmanEngine([shared_registry.host, f"127.0.0.1:{odd_port}"])
    except EngineMissing as error:
        pytest.fail(str(error), pytrace=False)
    with engine:
        yield engine


class UnitsHere:
    """What the suite asks of an engine, of systemd."""

    def names(self) -> list[str]:
        """The names of all units that agents made."""
        words = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "farmd..*"]
        lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
        return [line.split()[0] for line in lines]

    async def end(self) -> None:
        """End all units, and wait until systemd has forgotten their names: the next test takes the same."""

        async def forgotten() -> bool:
            return not self.names()

        done = subprocess.run(["systemctl", "stop", "farmd..*"], check=False, timeout=180)
        assert done.returncode in {0, 5}  # 5: one ended by itself before systemd came to it
        await eventually(forgotten, what="the end of all units")


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[PodmanEngine | UnitsHere]:
    if INSIDE in os.environ:
        yield UnitsHere()
        return
    shared: PodmanEngine = request.getfixturevalue("shared_engine")
    yield shared
    shared.answer()
    shared.clear()


@pytest.fixture
async def rig(consul_dev: str, tmp_path: Path, engine: PodmanEngine | UnitsHere) -> AsyncIterator[Agents]:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    allow = (str(tmp_path / "shared"),)
    async with agents_on(consul_dev, tmp_path) as made:
        if isinstance(engine, PodmanEngine):
            made.container = ContainerConfig(engine=engine.url, allow=allow, secrets_dir=secrets)
        else:
            made.systemd = SystemdConfig(bus=os.environ[INSIDE], allow=allow, secrets_dir=secrets)
        yield made
    if isinstance(engine, UnitsHere):
        await engine.end()
