"""R28 on real Consul with real processes: one start for each rise of an intent's counter."""

from __future__ import annotations

import asyncio
import signal

from store.manifests import Restart, Stop
from store.reality import Reality
from tests.agents import AgentProcess, Agents, alive, shell, web

COUNTED = shell("echo $$ >> starts; exec sleep 1000")
# The file ``go`` lets it end.
SLOW = shell(
    "echo $$ >> starts; trap 'while [ ! -e go ]; do sleep 0.02; done; exit 0' TERM;"
    " while :; do sleep 0.02; done",
    stop=Stop(grace=600),
)


def starts(rig: Agents) -> list[str]:
    """The process ids of all starts."""
    return (rig.root / "n1" / "instances" / "web" / "work" / "starts").read_text().split()


async def acted(rig: Agents, restart: int) -> Reality:
    return await rig.until(lambda r: r.restart == restart and r.phase == "running", what=f"restart {restart}")


async def test_r28_each_rise_is_one_new_process_and_no_other_write_of_the_intent_is(rig: Agents) -> None:
    await rig.agent()
    await rig.want(web())
    before = await rig.until(lambda r: r.health.state == "passing")
    index = await rig.want(web(), restart=1)
    after = await rig.until(lambda r: r.restart == 1 and r.health.state == "passing")
    assert not alive(before)
    assert (after.intent, after.restarts, after.ports) == (index, 0, before.ports)
    again = await rig.want(web(), restart=1, owner="rc2")
    assert (await rig.until(lambda r: r.intent == again)).pid == after.pid


async def test_r28_a_pod_in_backoff_is_started_at_once(rig: Agents) -> None:
    running = await rig.agent()
    hour = Restart(initial=3600.0, maximum=3600.0, reset=3600.0)
    crashing = shell("test -e well && exec sleep 1000; exit 3", restart=hour)
    await rig.want(crashing)
    await rig.until(lambda r: r.phase == "backoff")
    (running.state.work("web") / "well").touch()
    await rig.want(crashing, restart=1)
    after = await acted(rig, 1)
    assert after.health.since == after.started, "it failed before, and does not any more"


async def test_r28_a_rise_while_the_agent_is_away_is_acted_on_when_it_is_back(rig: Agents) -> None:
    async with AgentProcess(rig):
        await rig.want(COUNTED)
        await rig.until_running(COUNTED)
    await rig.want(COUNTED, restart=1)
    await rig.want(COUNTED, restart=2)
    async with AgentProcess(rig):
        await acted(rig, 2)
    async with AgentProcess(rig):
        await rig.want(COUNTED, restart=3)
        await acted(rig, 3)
    assert len(starts(rig)) == 3, "both rises while it was away are one restart"


async def test_r28_an_agent_that_is_killed_between_stop_and_start_finishes_the_restart(rig: Agents) -> None:
    async with AgentProcess(rig) as agent:
        await rig.want(SLOW)
        await rig.until_running(SLOW)
        await rig.want(SLOW, restart=1)
        await rig.until(lambda r: r.phase == "stopping")
        await agent.end(signal.SIGKILL)
    (rig.root / "n1" / "instances" / "web" / "work" / "go").touch()
    async with AgentProcess(rig):
        after = await acted(rig, 1)
        assert after.exits[-1].code == 0
        assert after.health.since == after.started, "the end that was asked for is no failure"
    assert len(starts(rig)) == 2


async def test_r28_a_restart_survives_agents_that_are_killed_at_any_moment(rig: Agents) -> None:
    async with AgentProcess(rig):
        await rig.want(COUNTED)
        await rig.until_running(COUNTED)
    for restart, after in enumerate([0.0, 0.01, 0.02, 0.04, 0.08, 0.16], start=1):
        async with AgentProcess(rig) as agent:
            await rig.until(lambda r, restart=restart: r.restart == restart - 1 and r.phase == "running")
            await rig.want(COUNTED, restart=restart)
            await asyncio.sleep(after)  # where the kill falls
            await agent.end(signal.SIGKILL)
        async with AgentProcess(rig):
            await acted(rig, restart)
        assert len(starts(rig)) == 1 + restart
