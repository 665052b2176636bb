"""``stop_after`` holds while the agent cannot act: it is dead, stopped, or another one follows it (R27)."""

from __future__ import annotations

import signal

import pytest

from farmd.agent import lease
from store.presence import start_ticks
from store.reality import Reality
from tests.agents import AgentProcess, Agents, alive, shell
from tests.fleet import eventually

BOUND = shell("exec sleep 1000", stop_after=2.0)
STEADY = shell("exec sleep 1000")
SHORT = {"FARMD_AGENT__TTL": "10"}


async def until_gone(reality: Reality) -> None:
    async def gone() -> bool:
        return start_ticks(reality.pid) is None

    await eventually(gone, what=f"end of process {reality.pid}")


async def both(rig: Agents) -> tuple[Reality, Reality]:
    """A pod with ``stop_after`` and one without, both running."""
    await rig.want(BOUND, instance="bound")
    await rig.want(STEADY, instance="steady")
    bound = await rig.until_running(BOUND, instance="bound")
    return bound, await rig.until_running(STEADY, instance="steady")


async def test_r27_a_stopped_agent_keeps_no_pod_longer_than_stop_after(rig: Agents) -> None:
    async with AgentProcess(rig, **SHORT) as agent:
        bound, steady = await both(rig)
        agent.process.send_signal(signal.SIGSTOP)
        await until_gone(bound)
        assert alive(steady)
        agent.process.send_signal(signal.SIGCONT)
        again = await rig.until(lambda r: r.phase == "running" and r.pid != bound.pid, instance="bound")
        assert alive(again)
        assert alive(steady)


@pytest.mark.parametrize("withdrawn", [False, True], ids=["still-wanted", "placed-elsewhere"])
async def test_r27_a_killed_agent_keeps_no_pod_and_the_next_one_asks_first(
    rig: Agents, withdrawn: bool
) -> None:
    async with AgentProcess(rig, **SHORT) as agent:
        bound, steady = await both(rig)
        await agent.end(signal.SIGKILL)
    await until_gone(bound)
    assert alive(steady)
    if withdrawn:
        await rig.unwant(instance="bound")
    async with AgentProcess(rig, **SHORT):
        if withdrawn:
            await rig.until_gone(instance="bound")
        else:
            again = await rig.until(lambda r: r.phase == "running" and r.pid != bound.pid, instance="bound")
            assert not again.reason, "no failure of the pod's own"
        assert alive(steady)


async def test_r27_an_agent_that_is_back_in_time_takes_the_lease_on(rig: Agents) -> None:
    pod = shell("exec sleep 1000", stop_after=60.0)
    async with AgentProcess(rig, **SHORT) as agent:
        await rig.want(pod)
        before = await rig.until_running(pod)
        (identity,) = rig.identities()
        await agent.end(signal.SIGKILL)
        until = lease.overdue_of(identity.shim)
    assert until is not None

    async def renewed() -> bool:
        found = lease.overdue_of(identity.shim)
        return found is not None and found > until + 5

    async with AgentProcess(rig, **SHORT):
        await eventually(renewed, what="a renewal by the next agent")
        assert alive(before)
        assert (await rig.realities())["web"].pid == before.pid
