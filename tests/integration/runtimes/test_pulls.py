"""Images from registries: what is pulled, and what stays as it is while nothing can be."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from store.containers import Container
from store.manifests import Manifest, Stop
from tests.agents import FAST, Agents, alive, sha_of
from tests.engine import IMAGE, PodmanEngine, busybox
from tests.fleet import eventually
from tests.registry import PASSWORD, USER, Registry, config_json
from tests.web_servers import serving

pytestmark = pytest.mark.xdist_group("containers")

WAITS = "while :; do sleep 0.05; done"


def running(image: str, **options: Any) -> Manifest:
    """A pod that waits, in a container of that image."""
    return Manifest(
        id="web",
        command=["/bin/sh", "-c", WAITS],
        runtime="container",
        container=Container(image=image, **options),
        restart=FAST,
        stop=Stop(grace=0.2),
    )


async def refused(rig: Agents, manifest: Manifest, why: str) -> str:
    """The reason why a manifest is refused, which must hold ``why``, while the former pod keeps running."""
    former = running(IMAGE, pull="never")
    await rig.want(former)
    before = await rig.until_running(former)
    index = await rig.want(manifest)
    told = await rig.until(lambda r: r.refused == index and why in r.reason, what=why)
    assert (told.pid, told.manifest, alive(before)) == (before.pid, sha_of(former), True)
    assert "\n" not in told.reason
    return told.reason


@pytest.mark.parametrize("pull", ["missing", "always"])
async def test_an_image_is_pulled_by_its_digest_and_runs(
    rig: Agents, registry: Registry, engine: PodmanEngine, pull: str
) -> None:
    digest = registry.push(f"team/{pull}", "1.4", busybox(), ["amd64", "arm64"])
    registry.push(f"team/{pull}", "1.4", b"no archive at all")
    await rig.agent()
    image = f"{registry.host}/team/{pull}:1.4@{digest}"
    await rig.want(running(image, pull=pull))
    await rig.until(lambda r: r.phase == "running" and not r.reason)
    assert digest in engine.run("inspect", "farmd..n1..web", "--format", "{{.ImageName}} {{.ImageDigest}}")


async def test_an_image_is_pulled_with_the_nodes_own_login(
    rig: Agents, registry: Registry, tmp_path: Path
) -> None:
    digest = registry.push("private/web", "1", busybox())
    registry.with_passwords()
    logins = tmp_path / "config.json"
    logins.write_text(config_json(registry.host))
    assert rig.container is not None
    rig.container = replace(rig.container, registry_auth=str(logins))
    await rig.agent()
    manifest = running(f"{registry.host}/private/web:1@{digest}")
    await rig.want(manifest)
    await rig.until_running(manifest)


@pytest.mark.parametrize("text", [config_json("HOST", USER, "wrong-hush"), "{hush", ""])
async def test_a_wrong_login_is_told_without_it(
    rig: Agents, registry: Registry, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    digest = registry.push("refused/web", "1", busybox())
    registry.with_passwords()
    logins = tmp_path / "config.json"
    logins.write_text(text.replace("HOST", registry.host))
    assert rig.container is not None
    rig.container = replace(rig.container, registry_auth=str(logins) if text else "")
    await rig.agent()
    why = "cannot be read" if text == "{hush" else "cannot be pulled"
    reason = await refused(rig, running(f"{registry.host}/refused/web:1@{digest}"), why)
    for secret in ("hush", PASSWORD, json.loads(config_json(registry.host))["auths"][registry.host]["auth"]):
        assert secret not in reason + caplog.text


async def test_an_image_that_does_not_exist_is_refused(rig: Agents, registry: Registry) -> None:
    await rig.agent()
    reason = await refused(rig, running(f"{registry.host}/none:1"), "none:1 cannot be pulled")
    assert "unknown" in reason


async def test_an_image_for_other_machines_is_refused(rig: Agents, registry: Registry) -> None:
    digest = registry.push("other/web", "1", busybox(), ["s390x"])
    await rig.agent()
    await refused(rig, running(f"{registry.host}/other/web:1@{digest}"), "no image found in")


async def test_a_registry_with_too_many_requests_is_asked_again_later(
    rig: Agents, registry: Registry, odd_port: int
) -> None:
    async def too_many(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "0"})

    await rig.agent()
    async with serving(too_many, odd_port):
        await refused(rig, running(f"127.0.0.1:{odd_port}/web:1"), "cannot be pulled")


@pytest.fixture
def small_engine(tmp_path: Path, shared_registry: Registry) -> Iterator[PodmanEngine]:
    """An engine with a disk of its own, of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
    try:
        with PodmanEngine([shared_registry.host], disk) as engine:
            yield engine
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


async def test_an_image_that_fills_the_disk_is_refused(
    rig: Agents, registry: Registry, small_engine: PodmanEngine
) -> None:
    digest = registry.push("big/web", "1", random.Random(1).randbytes(32 * 2**20))
    assert rig.container is not None
    rig.container = replace(rig.container, engine=small_engine.url)
    await rig.agent()
    await refused(rig, running(f"{registry.host}/big/web:1@{digest}"), "no space left on device")


async def test_a_registry_that_hangs_is_given_up(
    rig: Agents, registry: Registry, odd_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.agent.runtimes.engine.PULL_SILENCE_SECONDS", 0.5)

    async def hang(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    await rig.agent()
    async with serving(hang, odd_port):
        await rig.want(running(f"127.0.0.1:{odd_port}/slow:1"))
        await rig.until(lambda r: r.preparing == f"pulling 127.0.0.1:{odd_port}/slow:1")
        await rig.until(lambda r: "cannot be pulled" in r.reason and not r.preparing)
        await refused(rig, running(f"127.0.0.1:{odd_port}/web:1"), "cannot be pulled")


async def test_an_image_that_no_pod_needs_any_more_is_removed_and_the_last_good_one_is_not(
    rig: Agents, registry: Registry, engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.agent.runtimes.container_images.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("farmd.agent.supervisor.TIDY_SECONDS", 0.0)
    assert rig.container is not None
    rig.container = replace(rig.container, image_retention=0.2)
    await rig.agent()
    known = rig.root / "n1" / "images.json"

    async def good_now(digest: str) -> bool:
        good = json.loads(known.read_text()).get("good", {}) if known.exists() else {}
        return digest in good.get("web", [""])[0]

    digests: list[str] = []
    for version in "123":
        digests.append(registry.push("team/old", version, busybox() + version.encode()))
        manifest = running(f"{registry.host}/team/old:{version}@{digests[-1]}")
        await rig.want(manifest)
        await rig.until_running(manifest)
        await eventually(partial(good_now, digests[-1]), what=f"version {version}, noted as good")

    async def left() -> list[str]:
        image = f"{registry.host}/team/old@{{}}".format
        return [digest for digest in digests if await asyncio.to_thread(engine.holds, image(digest))]

    async def two() -> bool:
        return await left() == digests[1:]

    await eventually(two, what="two images of three")
    assert engine.holds(IMAGE)
