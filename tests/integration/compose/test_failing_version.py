"""A version that fails on a real engine: the old one serves on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import PodmanEngine
from tests.projects import Image, Sites, made

pytestmark = pytest.mark.xdist_group("containers")

GOOD = Image(["/bin/sh", "-c", "while :; do sleep 1; done"])
BAD = Image(["/bin/sh", "-c", "exit 3"])


def file(folder: Path, version: int) -> Path:
    found = folder / "service.yaml"
    image = f"container: {{image: 'localhost/app:{version}', pull: never}}"
    found.write_text(f"kind: service\nname: app\n{image}\nupdate: {{monitor: 0.5s}}\n")
    return found


async def test_a_version_that_ends_goes_back_and_the_old_container_serves_on(
    sites: Sites, shared_engine: PodmanEngine, tmp_path: Path
) -> None:
    made(shared_engine, "localhost/app:1", GOOD)
    made(shared_engine, "localhost/app:2", BAD)
    await sites.deployed(file(tmp_path, 1))
    before = await sites.rig.intents()
    result = await sites.run("deploy", "-f", str(file(tmp_path, 2)), "-y")
    assert result.code == 9, result
    assert "/app~1: ended 2 times, the last time with code 3" in result.err
    after = await sites.rig.intents()
    assert {place: each.manifest for place, each in after.items()} == {
        place: each.manifest for place, each in before.items()
    }
