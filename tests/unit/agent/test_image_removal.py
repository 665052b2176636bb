"""Which images an agent removes: its own, which no pod needs, and never the last good one."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from farmd.agent.runtimes.container_images import HOUR, LOOK_SECONDS, Images
from farmd.agent.runtimes.engine import Engine, EngineLacks, EngineRefused
from farmd.agent.state import StateDirectory
from farmd.observe.recorder import Metrics
from store.containers import Container
from store.manifests import Manifest
from tests.still_clock import StillClock

DAY = 24 * HOUR
WEEK = 7 * DAY


class Shelf(Engine):
    """The images that an engine has; those in ``used`` belong to containers."""

    def __init__(self, folder: Path) -> None:
        super().__init__("unix:///none")
        self.here: set[str] = set()
        self.used: set[str] = set()
        self.trouble: EngineRefused | None = None
        self.folder = folder

    @property
    def docker(self) -> Any:
        return SimpleNamespace(images=self, system=self)

    async def ask(self, what: Any, seconds: float = 0.0) -> Any:
        return await what

    async def info(self) -> dict[str, str]:
        return {"DockerRootDir": str(self.folder)}

    async def inspect(self, name: str) -> None:
        if name not in self.here:
            raise self.trouble or EngineLacks("no such image")

    async def delete(self, name: str) -> None:
        if name in self.used:
            raise EngineRefused("image is in use")
        self.here.discard(name)


class Node:
    """A node's images; days go by as a test says."""

    def __init__(self, folder: Path, retention: float = WEEK) -> None:
        self.clock, self.shelf = StillClock(), Shelf(folder)
        self.state, self.retention = StateDirectory(folder / "state"), retention
        self.images = self.restarted()

    def restarted(self) -> Images:
        metrics = Metrics(CollectorRegistry())
        return Images(self.shelf, self.state, self.retention, self.clock, metrics)

    def pulls(self, *images: str) -> None:
        for image in images:
            self.shelf.here.add(image)
            self.images.needed(image, pulled=True)

    async def after(self, seconds: float, *runs: Manifest, good: bool = True) -> set[str]:
        """What is there after some time in which these pods ran."""
        await self.images.tidy(runs, runs if good else ())
        self.clock.seconds += max(seconds, LOOK_SECONDS)
        await self.images.tidy(runs, runs if good else ())
        return self.shelf.here


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50, total=100))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def web(image: str) -> Manifest:
    return Manifest(id="web", runtime="container", container=Container(image=image))


async def test_an_image_goes_once_no_pod_has_needed_it_for_the_retention(node: Node) -> None:
    node.pulls("web:1", "db:1")
    assert await node.after(WEEK - HOUR, web("web:1")) == {"web:1", "db:1"}
    assert await node.after(2 * HOUR, web("web:1")) == {"web:1"}


async def test_the_last_good_version_before_the_present_one_stays_and_a_bad_one_goes(node: Node) -> None:
    node.pulls("web:1", "web:2", "web:3", "web:4")
    for image, good in (("web:1", True), ("web:2", True), ("web:3", False), ("web:4", True)):
        await node.after(DAY, web(image), good=good)
    assert await node.after(2 * WEEK, web("web:4")) == {"web:2", "web:4"}
    node.images = node.restarted()
    assert await node.after(2 * WEEK, web("web:4")) == {"web:2", "web:4"}


async def test_what_a_pod_needs_stays_however_long_the_engine_takes_to_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is not healthy yet has no good image; the retention is over when the engine has answered."""
    node.pulls("web:1")

    async def slow() -> dict[str, str]:
        node.clock.seconds += 2 * WEEK
        return {}

    monkeypatch.setattr(node.shelf, "info", slow)
    await node.images.tidy([web("web:1")], [])
    assert node.shelf.here == {"web:1"}


async def test_the_versions_of_a_service_that_is_gone_go_with_the_time(node: Node) -> None:
    node.pulls("web:1", "web:2")
    await node.after(DAY, web("web:1"))
    await node.after(DAY, web("web:2"))
    assert await node.after(WEEK + HOUR) == set()


async def test_what_others_brought_is_never_removed(node: Node) -> None:
    node.shelf.here.add("db:1")
    node.images.needed("db:1")
    assert await node.after(2 * WEEK) == {"db:1"}


@pytest.mark.parametrize("text", [b"", b"{broken", b"[]"])
async def test_where_the_list_is_lost_nothing_is_removed(node: Node, text: bytes) -> None:
    node.pulls("web:1")
    (node.state.root / "images.json").write_bytes(text)
    node.images = node.restarted()
    assert await node.after(2 * WEEK) == {"web:1"}


async def test_a_retention_of_zero_removes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, retention=0.0)
    node.pulls("web:1")
    assert await node.after(2 * WEEK) == {"web:1"}


async def test_what_a_container_has_stays_until_that_is_gone(node: Node) -> None:
    node.pulls("web:1")
    node.shelf.used = {"web:1"}
    assert await node.after(WEEK + HOUR) == {"web:1"}
    node.shelf.used = set()
    assert await node.after(HOUR) == set()


async def test_an_image_of_which_the_engine_cannot_tell_is_not_forgotten(node: Node) -> None:
    node.pulls("web:1")
    node.shelf.here.discard("web:1")
    node.shelf.trouble = EngineRefused("the storage is locked")
    with pytest.raises(EngineRefused):
        await node.after(WEEK + HOUR)
    node.shelf.here.add("web:1")
    node.shelf.trouble = None
    assert await node.after(HOUR) == set()


async def test_on_a_full_disk_an_hour_is_enough_but_the_last_good_version_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5, total=100))
    node.pulls("web:1", "web:2", "db:1")
    await node.after(60.0, web("web:1"))
    assert await node.after(HOUR / 2, web("web:2")) == {"web:1", "web:2", "db:1"}
    assert await node.after(2 * HOUR, web("web:2")) == {"web:1", "web:2"}
