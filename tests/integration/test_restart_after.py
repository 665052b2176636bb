"""``health.restart_after`` with a real Consul and real processes: what goes on failing its check is restarted
in place."""

from __future__ import annotations

import signal
from itertools import pairwise
from typing import Any

from store.manifests import HealthCheck, Manifest, Restart, Stop
from store.reality import Reality
from tests.agents import AgentProcess, Agents, alive, shell

UNHEALTHY = "unhealthy for 0.3 s (health.restart_after): exit code 1"


def ailing(restart_after: float = 0.3, **fields: Any) -> Manifest:
    """A pod that fails its check while a file ``sick`` is in its directory."""
    check = HealthCheck(
        type="command",
        command=["/bin/sh", "-c", "test ! -e sick"],
        interval=0.1,
        timeout=30,
        failures=2,
        restart_after=restart_after,
    )
    return shell("exec sleep 1000", health=check, **fields)


async def passing(rig: Agents) -> Reality:
    return await rig.until(lambda r: r.phase == "running" and r.health.state == "passing", what="passing")


async def test_a_pod_that_goes_on_failing_its_check_is_restarted_in_place(rig: Agents) -> None:
    running = await rig.agent()
    sick = running.state.work("web") / "sick"
    await rig.want(ailing(restart=Restart(initial=0.2, maximum=600, reset=600)))
    first = await passing(rig)
    sick.touch()
    down = await rig.until(lambda r: r.phase == "backoff")
    assert down.reason == UNHEALTHY
    assert down.exits[0].unhealthy
    assert not alive(first)
    # Each further restart in a row waits twice as long as the one before.
    again = await rig.until(lambda r: len(r.exits) >= 3 and r.phase == "running")
    assert all(end.unhealthy for end in again.exits)
    pauses = [after.at - before.at for before, after in pairwise(again.exits[:3])]
    assert pauses[0] >= 0.2
    assert pauses[1] >= 0.4
    sick.unlink()
    well = await passing(rig)
    assert well.reason == ""
    assert well.restarts >= 3


async def test_r39_an_unhealthy_pod_leaves_before_its_restart_and_a_killed_agent_counts_it_alike(
    rig: Agents,
) -> None:
    wait = ["/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]
    pod = ailing(
        stop=Stop(command=wait, command_timeout=60),
        restart=Restart(initial=0.05, maximum=0.2, policy="on-failure"),
    )
    work = rig.root / "n1" / "instances" / "web" / "work"
    async with AgentProcess(rig) as agent:
        await rig.want(pod)
        first = await passing(rig)
        (work / "sick").touch()
        leaving = await rig.until(lambda r: r.phase == "stopping" and r.leaves_until > 0)
        assert leaving.reason == UNHEALTHY
        assert alive(first)
        await agent.end(signal.SIGKILL)
    (work / "sick").unlink()
    (work / "go").touch()
    async with AgentProcess(rig):
        after = await rig.until(lambda r: r.restarts == 1 and r.health.state == "passing")
    assert [end.unhealthy for end in after.exits] == [True]
    assert not alive(first)


async def test_a_pod_without_restart_after_goes_on_and_agents_name_the_feature(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(ailing(restart_after=0))
    first = await passing(rig)
    (running.state.work("web") / "sick").touch()
    ill = await rig.until(lambda r: r.health.state == "critical")
    assert (ill.started, alive(first)) == (first.started, True)
    found = await rig.presence()
    assert found is not None
    assert "restart-after.1" in found[0].features
