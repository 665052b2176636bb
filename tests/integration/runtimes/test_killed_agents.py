"""R29: a pod that may end runs once, whenever its agent is killed, and on every runtime."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from store.containers import Container, Mount
from store.manifests import Manifest, Restart
from store.reality import Reality
from tests.agents import AgentProcess, Agents
from tests.engine import IMAGE, PodmanEngine
from tests.fleet import eventually

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.slow]

PODS = 8
KILLS = 6


@pytest.fixture(params=["process", "container"])
def member(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Manifest]:
    """Makes the n-th pod, which writes one line into a file of its own and fails a little later."""
    shared = tmp_path / "shared"
    shared.mkdir()

    def made(n: int) -> Manifest:
        script = f"echo run >> {shared}/{n}; sleep 0.{n}; exit 3"
        fields: dict[str, Any] = {"runtime": request.param, "restart": Restart(policy="never")}
        if request.param == "container":
            fields["container"] = Container(image=IMAGE, pull="never")
            fields["mounts"] = [Mount(type="bind", source=str(shared), target=str(shared))]
        return Manifest(id=f"job{n}", command=["/bin/sh", "-c", script], **fields)

    return made


async def test_r29_no_end_is_followed_by_a_start_however_often_the_agent_is_killed(
    rig: Agents, member: Callable[[int], Manifest], engine: PodmanEngine, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    settings = {"FARMD_AGENT__ENGINE": engine.url, "FARMD_AGENT__ALLOW": f"processes,{shared}"}

    def runs() -> list[str]:
        return [path.read_text() for path in sorted(shared.iterdir())]

    async def all_done() -> dict[str, Reality] | None:
        found = await rig.realities()
        return found if len(found) == PODS and all(r.phase == "done" for r in found.values()) else None

    wanted = False
    for kill in range(KILLS):
        async with AgentProcess(rig, **settings) as agent:
            if not wanted:
                for n in range(PODS):
                    await rig.want(member(n), instance=f"job{n}")
                wanted = True
            began = len(runs())

            async def went_on(began: int = began) -> bool:
                return len(runs()) > began or len(runs()) == PODS

            await eventually(went_on, what=f"another pod before kill {kill}")
            await agent.end(signal.SIGKILL)
    async with AgentProcess(rig, **settings):
        done = await eventually(all_done, what="the ends of all pods")
    assert runs() == ["run\n"] * PODS
    assert [[end.code for end in each.exits] for each in done.values()] == [[3]] * PODS


async def test_r29_one_whose_end_nobody_saw_is_lost_and_runs_no_second_time(
    rig: Agents, member: Callable[[int], Manifest], engine: PodmanEngine, tmp_path: Path
) -> None:
    manifest = member(9)
    if manifest.runtime == "process":
        script = f"echo run >> {tmp_path}/shared/9; sleep 1000"
        manifest = msgspec.structs.replace(manifest, command=["/bin/sh", "-c", script])
    first = await rig.agent()
    await rig.want(manifest)
    before = await rig.until(lambda r: r.phase == "running")
    await first.crash()
    if manifest.runtime == "container":
        engine.remove(*engine.names())
    else:
        for identity in rig.identities():
            os.kill(identity.shim, signal.SIGKILL)
        os.kill(before.pid, signal.SIGKILL)
    await rig.agent()
    done = await rig.until(lambda r: r.phase == "done")
    assert [(end.code, end.cause) for end in done.exits] == [(-9, "lost")]
    assert (tmp_path / "shared" / "9").read_text() == "run\n"
