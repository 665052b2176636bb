"""Compose files in the style of public projects come up on machines with containers, and answer over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import PodmanEngine
from tests.fleet import eventually
from tests.ports import free_ports
from tests.projects import IMAGES, Sites, made

pytestmark = pytest.mark.xdist_group("containers")

PROJECTS = Path(__file__).parent / "projects"


@pytest.fixture(scope="session")
def images(shared_engine: PodmanEngine) -> None:
    for name, image in IMAGES.items():
        made(shared_engine, name, image)


@pytest.fixture
def port(images: None) -> int:
    """A port of this machine on which a site is published."""
    (found,) = free_ports(1)
    return found


async def test_a_wiki_comes_up_after_its_database_and_stays_as_it_is(
    sites: Sites, port: int, tmp_path: Path
) -> None:
    (tmp_path / "secrets" / "wiki-db").write_text("hush")
    file, env = PROJECTS / "wiki.yaml", {"WIKI_PORT": str(port)}
    await sites.deployed(file, "-p", "wiki", env=env)
    await sites.shows(port, "wiki:2", "visits 1")
    again = await sites.deployed(file, "-p", "wiki", env=env)
    assert again.out == "unchanged\n", again
    await sites.shows(port, "visits 2")


async def test_photos_have_workers_a_cache_and_variables_of_a_file(sites: Sites, port: int) -> None:
    env = {"PHOTOS_VERSION": "v1", "PHOTOS_PORT": str(port), "DB_PASSWORD": "x"}
    await sites.deployed(PROJECTS / "photos.yaml", "-p", "photos", env=env)
    await sites.shows(port, "photos:v1", "cache pong", "photos of $nobody")
    machines = {node for node, _ in await sites.pods("photos")}
    assert len(machines) == 1
    assert len(await sites.pods("photos")) == 5


async def test_monitoring_has_an_exporter_on_each_machine(sites: Sites, port: int, tmp_path: Path) -> None:
    (tmp_path / "shared" / "marker").touch()
    env = {"HOST_ROOT": str(tmp_path / "shared"), "DASHBOARD_PORT": str(port)}
    result = await sites.deployed(PROJECTS / "monitoring.yaml", "-p", "monitoring", env=env)
    assert "services.prometheus.expose is ignored" in result.err
    await sites.shows(port, "grafana:11.2.0", "name: Prometheus", "up 1")
    exporters = [node for node, pod in await sites.pods("monitoring") if pod.startswith("exporter")]
    assert sorted(exporters) == ["n1", "n2"]


async def test_a_blog_keeps_its_data_when_its_file_changes(sites: Sites, port: int) -> None:
    file, env = PROJECTS / "blog.yaml", {"BLOG_PORT": str(port), "MYSQL_PASSWORD": "one"}
    await sites.deployed(file, "-p", "blog", env=env)
    await sites.shows(port, "wordpress:6", "visits 1")
    result = await sites.deployed(file, "-p", "blog", env=env | {"MYSQL_PASSWORD": "two"})
    assert "~ update service db" in result.err
    assert "~ update service blog" in result.err
    await sites.shows(port, "wordpress:6", "visits 2")


async def test_a_queue_is_prepared_before_it_is_read(sites: Sites, port: int) -> None:
    await sites.deployed(PROJECTS / "queue.yaml", "-p", "queue", env={"QUEUE_PORT": str(port)})

    async def consumed() -> bool:
        text = await sites.shows(port, "consumed ")
        return "consumed none" not in text

    await eventually(consumed, what="a message that was consumed")
