"""L1: the time until 100 pods of one node run, with an artifact that the node has already, and without one.

A real agent starts real processes: the pods' intents are written at once, and each pod counts when the agent
told that it runs. The artifact is an archive of the program; the agent fetched and unpacked it before.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import time
from pathlib import Path

from bench.rig import report
from farmd.agent.model import ArtifactConfig
from store import codec, manifests, operations
from store.artifacts import Artifact
from store.manifests import Manifest
from store.reality import Intent
from tests.agents import Agents, agents_on
from tests.fleet import eventually
from tests.servers import ConsulServer

PODS, ROUNDS, RATIO, AT_ONCE = 100, 5, 1.2, 50
PROGRAM = "/bin/sleep"


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    with tempfile.TemporaryDirectory() as made, ConsulServer(dev=False) as server:
        folder = Path(made)
        (folder / "app.tar.gz").write_bytes(archive := _archive())
        source, digest = f"file://{folder}/app.tar.gz", hashlib.sha256(archive).hexdigest()
        artifact = Artifact(source=source, sha256=digest, unpack="tar.gz", to="app")
        bare = Manifest(id="bare", command=[PROGRAM, "1000"])
        cached = Manifest(id="cached", command=["app/sleep", "1000"], artifacts=[artifact])
        async with agents_on(server.address, folder / "nodes") as rig:
            await rig.agent(artifacts=ArtifactConfig(allow=(str(folder),)))
            await _started(rig, cached, 1)  # fetches it
            await _started(rig, bare, PODS)  # warms up
            least, ours = [], []
            for _ in range(ROUNDS):
                least.append(await _started(rig, bare, PODS))
                ours.append(await _started(rig, cached, PODS))
    value, baseline = min(ours), min(least)  # other programs of the machine only add
    name = f"L1 start of {PODS} pods of one node with a cached artifact, seconds"
    return report(name, value, baseline, f"<= {RATIO:g} x without", value <= RATIO * baseline)


def _archive() -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        archive.add(PROGRAM, "sleep", filter=_executable)
    return into.getvalue()


def _executable(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mode = 0o755
    return info


async def _started(rig: Agents, manifest: Manifest, count: int) -> float:
    """Seconds until so many pods run; afterwards they are gone."""
    body = manifests.canonical(manifest)
    sha = manifests.digest(body)
    await rig.client.put(rig.keys.manifest(sha), body)
    intent = codec.encode(Intent(sha, "rc1"))
    keys = [rig.keys.intent("n1", f"{manifest.id}~{at}") for at in range(count)]
    began = time.monotonic()
    for first in range(0, count, AT_ONCE):
        await rig.client.transaction([operations.put(key, intent) for key in keys[first : first + AT_ONCE]])

    async def all_run() -> bool:
        found = await rig.realities()
        return sum(each.phase == "running" and each.manifest == sha for each in found.values()) == count

    await eventually(all_run, what=f"{count} pods")
    took = time.monotonic() - began

    async def none_left() -> bool:
        return not await rig.realities()

    for key in keys:
        await rig.client.delete(key)
    await eventually(none_left, what="the end of the pods")
    return took
