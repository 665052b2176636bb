"""What a container must not reach of its node, tried in a real engine: by drivers, volumes and links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from farmd.agent.runtimes.container_config import NODE
from farmd.agent.users import Users
from store.containers import Container, DeviceReservation, Mount, Volume
from store.features import root_by_farm
from store.manifests import Manifest, Stop
from tests.agents import FAST, Agents, kill, logged
from tests.engine import IMAGE, PodmanEngine

pytestmark = pytest.mark.xdist_group("containers")

WAITS = "while :; do sleep 0.05; done"


def pod(script: str = WAITS, *mounts: Mount, volumes: dict[str, Volume] | None = None) -> Manifest:
    return Manifest(
        id="web", runtime="container", container=Container(image=IMAGE), command=["/bin/sh", "-c", script],
        restart=FAST, stop=Stop(grace=0.2), mounts=list(mounts), volumes=volumes or {},
    )  # fmt: skip


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that the node allows, beside one that it does not."""
    (tmp_path / "shared" / "own").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "secret").write_text("hush")
    return tmp_path / "shared"


async def test_a_driver_of_volumes_reaches_no_path(rig: Agents, tmp_path: Path, shared: Path) -> None:
    await rig.agent()
    options = {"type": "none", "o": "bind", "device": str(tmp_path / "kept")}
    index = await rig.want(
        pod("cat /v/secret", Mount(source="v", target="/v"), volumes={"v": Volume(options=options)})
    )
    told = await rig.until(lambda r: r.refused == index)
    assert "agent.allow: this node does not allow volume-drivers" in told.reason


async def test_a_reservation_of_devices_needs_its_word(rig: Agents) -> None:
    await rig.agent()
    container = Container(image=IMAGE, device_reservations=[DeviceReservation(count=-1)])
    index = await rig.want(Manifest(id="web", runtime="container", container=container))
    told = await rig.until(lambda r: r.refused == index)
    assert "agent.allow: this node does not allow device-reservations" in told.reason


async def test_a_volume_that_no_agent_made_is_another_ones(rig: Agents, engine: PodmanEngine) -> None:
    engine.run("volume", "create", "theirs")
    try:
        await rig.agent()
        index = await rig.want(pod(WAITS, Mount(source="theirs", target="/v")))
        told = await rig.until(lambda r: r.refused == index)
        assert "does not allow volumes: it has theirs, which no agent made" in told.reason
        await rig.want(pod(WAITS, Mount(source="ours", target="/v")))
        await rig.until(lambda r: r.phase == "running")
        assert engine.run("volume", "inspect", "--format", f'{{{{index .Labels "{NODE}"}}}}', "ours") == "n1"
    finally:
        engine.clear()
        engine.run("volume", "rm", "--force", "theirs", "ours")


def joins(*networks: str) -> Manifest:
    """A pod in these networks."""
    container = Container(image=IMAGE, networks={name: [] for name in networks})
    return msgspec.structs.replace(pod(), container=container)


async def test_a_network_that_no_agent_made_needs_its_word(rig: Agents, engine: PodmanEngine) -> None:
    """Also as the second one of several, and by a part of its id, by which engines find networks, too."""
    engine.run("network", "create", "theirs")
    try:
        ident = engine.run("network", "inspect", "--format", "{{.ID}}", "theirs")
        first = await rig.agent()
        for names in (["theirs"], ["ours", "theirs"], [ident[:12]]):
            index = await rig.want(joins(*names))
            told = await rig.until(lambda r, index=index: r.refused == index)
            assert "does not allow network:theirs, which no agent made" in told.reason
        await rig.want(joins("ours"))
        await rig.until(lambda r: r.phase == "running")
        assert engine.run("network", "inspect", "--format", f'{{{{index .Labels "{NODE}"}}}}', "ours") == "n1"
        await first.close()
        assert rig.container is not None
        without, rig.container = rig.container, replace(rig.container, allow=("network:theirs",))
        second = await rig.agent()
        await rig.want(joins("theirs"))
        before = await rig.until_running(joins("theirs"))
        await second.close()
        rig.container = without
        await rig.agent()
        kill(before)  # what has joined it goes on, as after an upgrade
        after = await rig.until(lambda r: r.phase == "running" and r.pid != before.pid)
        assert after.refused == 0
    finally:
        engine.clear()
        engine.run("network", "rm", "--force", "theirs", "ours")


async def test_a_node_tells_that_its_engine_has_no_user_namespace(rig: Agents) -> None:
    """A process of such a node can hand its ``/`` to the root of a container (``root_by_farm``)."""
    running = await rig.agent(users=Users(default="nobody"))
    await rig.want(pod("sed -n '1s/ \\+/ /gp' /proc/self/uid_map; while :; do sleep 0.05; done"))
    assert (await logged(running, "0")).split()[:2] == ["0", "0"]  # root there is root here
    found = await rig.presence()
    assert found is not None
    assert "processes beside containers" in root_by_farm(found[0].features)


async def test_a_bind_that_became_a_link_is_refused_at_the_next_start(
    rig: Agents, tmp_path: Path, shared: Path
) -> None:
    """The container of the folder above puts a link there between two starts of the same manifest."""
    running = await rig.agent()
    link = f"rmdir /up/own && ln -s {tmp_path}/kept /up/own"
    once = "while ! test -e /up/go; do sleep 0.05; done"  # until its start was looked at again
    swap = f"test -e /m/secret && echo ESCAPED; {once}; {link}; echo swapped; exit 1"
    mounts = [
        Mount(type="bind", source=str(shared / "own"), target="/m"),
        Mount(type="bind", source=str(shared), target="/up"),
    ]
    await rig.want(pod(swap, *mounts))
    await rig.until(lambda r: r.phase == "running")
    (shared / "go").touch()
    told = await rig.until(lambda r: "agent.allow" in r.reason)
    assert f"this node does not allow {tmp_path}/kept" in told.reason
    assert await logged(running, "swapped") == "swapped\n"
