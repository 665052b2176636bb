"""The shop of the examples: deployed, updated, and rolled back from a bad image while it answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine import PodmanEngine
from tests.farmctl import Result
from tests.ports import free_ports
from tests.projects import IMAGES, Image, Sites, answer, made, script

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.slow]

FILE = Path(__file__).parents[3] / "examples" / "shop" / "compose.yaml"
SHARED = ("docker.io/library/postgres:16", "docker.io/library/redis:7")
# A migration waits for its database: podman's name server knows nobody while it reads its names anew.
RAILS = script('[ "$1" = db:migrate ] || exit 2', "until ask db 5432 incr migrations; do sleep 0.1; done")
MIGRATED = script('echo "migrations $(ask db 5432 get migrations)"')


@pytest.fixture(scope="session")
def images(shared_engine: PodmanEngine) -> None:
    for name in SHARED:
        made(shared_engine, name, IMAGES[name])
    web = Image(["/bin/page", "8080"], {"bin/rails": RAILS, "bin/extra": MIGRATED})
    for version in ("1.5", "1.6"):
        made(shared_engine, f"registry.example/shop/web:{version}", web)
    ends = Image(["/bin/sh", "-c", "echo no such table; exit 1"], {"bin/rails": RAILS})
    made(shared_engine, "registry.example/shop/web:1.7", ends)


@dataclass(frozen=True)
class Shop:
    """The shop on machines."""

    sites: Sites
    port: int

    async def deploy(self, version: str) -> Result:
        """Deploy a version of the web application."""
        env = {"SHOP_PORT": str(self.port), "SHOP_VERSION": version}
        return await self.sites.run("deploy", "-f", str(FILE), "-y", env=env)


@pytest.fixture
async def shop(images: None, sites: Sites, tmp_path: Path) -> Shop:
    (tmp_path / "secrets" / "shop-db").write_text("hush")
    found = Shop(sites, free_ports(1)[0])
    result = await found.deploy("1.5")
    assert result.code == 0, result
    await sites.shows(found.port, "web:1.5", "migrations 1")
    return found


async def test_a_new_version_comes_after_its_migration_and_a_broken_one_goes_back(shop: Shop) -> None:
    assert (await shop.deploy("1.6")).code == 0
    await shop.sites.shows(shop.port, "web:1.6", "migrations 2")
    result = await shop.deploy("1.7")
    assert result.code == 9, result
    assert "was rolled back: web: " in result.err
    await shop.sites.shows(shop.port, "web:1.6", "migrations 3")


async def test_an_image_that_no_machine_gets_costs_no_answer(shop: Shop) -> None:
    deploying = asyncio.create_task(shop.deploy("9.9"))
    answers = []
    while not deploying.done():
        answers.append(await asyncio.to_thread(answer, shop.port))
    result = deploying.result()
    assert result.code == 9, result
    assert "was rolled back: web: " in result.err
    assert all("web:1.5" in each for each in answers), [each for each in answers if "web:1.5" not in each]
    assert await shop.sites.shows(shop.port, "web:1.5", "migrations 1")
