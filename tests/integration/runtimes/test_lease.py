"""R27: a container with ``stop_after`` has a guard, which ends it where no agent does."""

from __future__ import annotations

import os
import signal

import pytest

from farmd.agent import lease
from farmd.agent.runtimes import guards, process
from store.containers import Mount
from store.manifests import Manifest, Restart, Stop
from store.reality import Reality
from tests.agents import AgentProcess, Agents
from tests.engine import PodmanEngine
from tests.fleet import eventually
from tests.integration.runtimes.test_containers import container

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.slow]

DEAF = "trap '' TERM; while :; do sleep 0.05; done"


def bound(script: str, stop_after: float, **fields: object) -> Manifest:
    return container(script, stop_after=stop_after, stop=Stop(grace=1000), **fields)


def settings(engine: PodmanEngine) -> dict[str, str]:
    return {"FARMD_AGENT__ENGINE": engine.url, "FARMD_AGENT__TTL": "10"}


def pids(rig: Agents) -> list[int]:
    instances = rig.root / "n1" / "instances"
    return [pid for pid, _, _ in process.processes(guards.SCRIPT, instances, 1)]


async def gone(engine: PodmanEngine, rig: Agents) -> None:
    """Until no container runs, and no guard waits for one."""

    async def so() -> bool:
        return not engine.run("ps", "--quiet") and not pids(rig)

    await eventually(so, what="the end of the container and its guard")


async def test_r27_a_killed_agent_keeps_no_container_and_no_failure_is_counted(
    rig: Agents, engine: PodmanEngine
) -> None:
    manifest = bound(DEAF, 2.0, restart=Restart(policy="never"))
    async with AgentProcess(rig, **settings(engine)) as agent:
        await rig.want(manifest)
        before = await rig.until_running(manifest)
        assert len(pids(rig)) == 1
        await agent.end(signal.SIGKILL)
    await gone(engine, rig)
    async with AgentProcess(rig, **settings(engine)):
        again = await rig.until(lambda r: r.phase == "running" and r.started != before.started)
        assert [end.code for end in again.exits] == [-9]


async def test_r27_a_good_end_of_a_containers_own_stays_one(rig: Agents, engine: PodmanEngine) -> None:
    go = rig.root / "shared"
    go.mkdir()
    script = f"while [ ! -e {go}/go ]; do sleep 0.05; done"
    mounts = [Mount(type="bind", source=str(go), target=str(go))]
    manifest = bound(script, 2.0, restart=Restart(policy="on-failure"), mounts=mounts)
    given = settings(engine) | {"FARMD_AGENT__ALLOW": str(go)}
    async with AgentProcess(rig, **given) as agent:
        await rig.want(manifest)
        await rig.until_running(manifest)
        await agent.end(signal.SIGKILL)
    (go / "go").touch()
    await gone(engine, rig)
    async with AgentProcess(rig, **given):
        done = await rig.until(lambda r: r.phase == "done")
        assert [end.code for end in done.exits] == [0]


async def test_r27_a_guard_that_is_lost_comes_back_and_one_without_its_container_ends(
    rig: Agents, engine: PodmanEngine
) -> None:
    manifest = bound("trap 'exit 0' TERM; while :; do sleep 0.05; done", 60.0)
    async with AgentProcess(rig, **settings(engine)) as agent:
        await rig.want(manifest)
        before = await rig.until_running(manifest)
        (first,) = pids(rig)
        await agent.end(signal.SIGKILL)
    until = lease.overdue_of(first)
    assert until is not None

    async def renewed() -> bool:
        return any((lease.overdue_of(pid) or 0.0) > until + 5 for pid in pids(rig))

    async with AgentProcess(rig, **settings(engine)) as agent:
        await eventually(renewed, what="a renewal by the next agent")
        assert pids(rig) == [first]
        await agent.end(signal.SIGKILL)
    os.kill(first, signal.SIGKILL)

    async def other() -> bool:
        return len(pids(rig)) == 1 and pids(rig) != [first]

    async with AgentProcess(rig, **settings(engine)):
        await eventually(other, what="another guard")
        found: Reality = (await rig.realities())["web"]
        assert (found.pid, found.started) == (before.pid, before.started)
        await rig.unwant()
        await rig.until_gone()
        await gone(engine, rig)
