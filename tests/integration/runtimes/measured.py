"""What containers use, by their control groups of version 2; ``test_shipped.py`` runs this on its machine."""

from __future__ import annotations

from functools import partial

from store.containers import Container, Limits
from store.manifests import Manifest, Stop
from store.reality import Usage
from tests.agents import FAST, Agents, Running
from tests.engine import IMAGE
from tests.fleet import eventually


def container(script: str, memory: int) -> Manifest:
    return Manifest(
        id="web",
        command=["/bin/sh", "-c", script],
        runtime="container",
        container=Container(image=IMAGE, pull="never", network="none"),
        limits=Limits(memory=memory, cpu=0.2, pids=9),
        restart=FAST,
        stop=Stop(grace=0.2),
    )


async def used(running: Running) -> Usage | None:
    """What the container uses, once it has all its memory and was throttled."""
    await running.agent.usages.look()
    found = running.agent.usages.found.get("web")
    return found if found is not None and found.memory > 20e6 and found.throttled_seconds else None


async def test_the_agent_tells_what_a_container_uses_also_after_its_restart(rig: Agents) -> None:
    running = await rig.agent()
    script = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); while :; do :; done"
    await rig.want(container(script, 200 * 2**20))
    for _ in range(2):
        told = await eventually(partial(used, running), what="the usage of the container")
        assert told.memory <= told.memory_peak <= told.memory_limit == 200 * 2**20
        assert (0 < told.cores < 0.5, told.oom_kills) == (True, 0)
        assert 1 <= told.pids <= told.pids_limit == 9
        await running.crash()
        running = await rig.agent()
