"""The commands of ``init`` of containers (R43), on a real engine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from store.containers import Container, Mount
from store.manifests import Init, Manifest, Port, Restart, Stop
from tests.agents import FAST, AgentProcess, Agents, logged
from tests.engine import IMAGE, PodmanEngine
from tests.fleet import eventually

pytestmark = pytest.mark.xdist_group("containers")

SLOW = Restart(initial=600, maximum=600)


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def pod(shared: Path, *init: Init, script: str = "exec sleep 1000", **fields: object) -> Manifest:
    given: dict[str, object] = {
        "id": "web",
        "command": sh(script),
        "runtime": "container",
        "container": Container(image=IMAGE, pull="never"),
        "mounts": [Mount(type="bind", source=str(shared), target="/shared")],
        "init": list(init),
        "restart": FAST,
        "stop": Stop(grace=0.2),
    }
    return Manifest(**(given | fields))  # type: ignore[arg-type]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def has(path: Path, count: int = 1) -> None:
    async def there() -> bool:
        return len(lines(path)) >= count

    await eventually(there, what=f"{count} lines in {path}")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of the node that pods see, too."""
    made = tmp_path / "shared"
    made.mkdir()
    return made


def of_init(engine: PodmanEngine) -> str:
    return engine.run("ps", "--all", "--quiet", "--filter", "label=farmd.init=n1")


async def none_of_init(engine: PodmanEngine) -> None:
    async def over() -> bool:
        return not of_init(engine)

    await eventually(over, what="the end of the containers of init")


async def test_r43_init_of_a_container_runs_in_order_like_it_and_is_logged(
    rig: Agents, shared: Path, engine: PodmanEngine
) -> None:
    running = await rig.agent()
    first = Init(command=sh('echo "one $FARMD_PORT_HTTP" | tee -a /shared/order'))
    second = Init(command=sh("echo two >> /shared/order; while [ ! -e /shared/go ]; do sleep 0.05; done"))
    ports = {"http": Port(container=80)}
    await rig.want(pod(shared, first, second, script="echo main >> /shared/order; exec sleep 9", ports=ports))
    await has(shared / "order", 2)
    waits = await rig.until(lambda r: r.preparing.startswith("init[1] (/bin/sh -c"))
    assert (waits.phase, waits.pid, lines(shared / "order")) == ("starting", 0, ["one 80", "two"])
    (shared / "go").touch()
    up = await rig.until(lambda r: r.phase == "running" and r.preparing == "")
    assert (up.reason, up.restarts, up.exits) == ("", 0, [])
    await has(shared / "order", 3)
    assert of_init(engine) == ""
    assert await logged(running, "one 80") == "one 80\n"


async def test_r43_a_failure_of_init_of_a_container_is_the_end_of_its_start(
    rig: Agents, shared: Path, engine: PodmanEngine
) -> None:
    await rig.agent()
    fails = Init(command=sh("echo try >> /shared/tries; echo no database; exit 4"), retries=1)
    await rig.want(pod(shared, Init(command=["true"]), fails, restart=SLOW))
    down = await rig.until(lambda r: r.phase == "backoff")
    assert down.reason.endswith("exited with code 4 at the last of 2 tries: no database")
    assert ([each.code for each in down.exits], lines(shared / "tries")) == ([4], ["try", "try"])
    assert of_init(engine) == ""


async def test_r43_a_command_of_init_that_hangs_or_is_not_wanted_ends(
    rig: Agents, shared: Path, engine: PodmanEngine
) -> None:
    await rig.agent()
    await rig.want(pod(shared, Init(command=["sleep", "1000"], timeout=1), restart=SLOW))
    down = await rig.until(lambda r: r.phase == "backoff")
    assert down.reason.endswith("it did not finish within 1 s")
    await none_of_init(engine)
    await rig.want(pod(shared, Init(command=sh("echo x >> /shared/began; sleep 1000"))))
    await has(shared / "began")
    good = pod(shared, Init(command=["true"]))
    await rig.want(good)
    await rig.until_running(good)
    await rig.want(pod(shared, Init(command=sh("echo x >> /shared/began; sleep 1000"))))
    await has(shared / "began", 2)
    await rig.unwant()
    await none_of_init(engine)


async def test_r43_what_a_killed_agent_left_of_init_is_ended_before_the_next_start(
    rig: Agents, shared: Path, engine: PodmanEngine
) -> None:
    script = (
        "mkdir /shared/alone || echo twice >> /shared/twice; trap 'rmdir /shared/alone; exit 1' TERM;"
        " echo x >> /shared/began; while [ ! -e /shared/go ]; do sleep 0.05; done; rmdir /shared/alone"
    )
    settings = {"FARMD_AGENT__ENGINE": engine.url, "FARMD_AGENT__ALLOW": str(shared)}
    async with AgentProcess(rig, **settings) as agent:
        await rig.want(pod(shared, Init(command=sh(script))))
        await has(shared / "began")
        await agent.end(signal.SIGKILL)
    (shared / "alone").rmdir()
    async with AgentProcess(rig, **settings):
        await has(shared / "began", 2)
        assert len(of_init(engine).split()) == 1
        (shared / "go").touch()
        await rig.until(lambda r: r.phase == "running" and r.preparing == "")
    assert of_init(engine) == ""
    assert lines(shared / "twice") == []
