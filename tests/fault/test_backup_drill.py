"""The drill of docs/backup.md, line by line: records are lost and come back, and no process ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.binaries import binary
from tests.farmctl import ROOT, Farmctl
from tests.fault.test_snapshot_restore import AFTER_RESTORE, created, scene_on
from tests.servers import ConsulServer


def drill(prefix: str) -> str:
    """The commands, for a cluster under another prefix."""
    text = (ROOT / "docs/backup.md").read_text()
    lines = text.partition("## A drill")[2].partition("```sh\n")[2].partition("```")[0]
    assert "kv delete -recurse farmd/ " in lines
    return lines.replace(" farmd/ ", f" {prefix} ")


async def test_the_drill_of_the_docs_brings_all_back_and_ends_no_process(tmp_path: Path) -> None:
    with ConsulServer(dev=False) as consul:
        async with scene_on(consul, tmp_path / "agents") as scene:
            await scene.farm("alive")
            await created(scene, 3)
            before = {each.pid for each in scene.rig.identities()}
            path = (binary("consul").parent, Path(sys.executable).parent, os.environ["PATH"])
            environment = {
                **os.environ,
                **Farmctl(consul.address, scene.keys.prefix).env,
                "CONSUL_HTTP_ADDR": consul.address,
                "PATH": os.pathsep.join(map(str, path)),
            }
            done = await asyncio.to_thread(
                subprocess.run,
                ["sh", "-exc", drill(scene.keys.prefix)],
                cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert "name: web" in (tmp_path / "before/rc.yaml").read_text()
            dump = await scene.settled(AFTER_RESTORE)
            assert len(dump.pods) == 3
            assert {each.pid for each in scene.rig.identities()} == before
