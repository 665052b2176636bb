"""The agent as a process of its own: killed, stopped and started again beside its workloads (R27)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from store.manifests import HealthCheck
from tests.agents import AgentProcess, Agents, alive, shell, web

LOGIN = {"HOME", "USER", "LOGNAME", "SHELL"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_r27_however_the_agent_ends_its_workloads_go_on(rig: Agents, number: signal.Signals) -> None:
    async with AgentProcess(rig) as first:
        await rig.want(web())
        before = await rig.until(lambda r: r.health.state == "passing")
        code = await first.end(number)
        assert code == (0 if number == signal.SIGTERM else -number)
        assert alive(before)
    async with AgentProcess(rig):
        index = await rig.want(web(), owner="rc2")
        after = await rig.until(lambda r: r.intent == index)
        assert (after.pid, after.started, after.restarts) == (before.pid, before.started, 0)
        assert after.health == before.health
        await rig.unwant()
        await rig.until_gone()
        assert not alive(before)


async def test_a_full_disk_below_the_log_ends_nothing(rig: Agents) -> None:
    async with AgentProcess(rig, stdout="/dev/full") as agent:
        await rig.want(web())
        await rig.until(lambda r: r.health.state == "passing")
        await rig.unwant()
        await rig.until_gone()
        assert agent.process.poll() is None


async def test_stop_workloads_on_exit_is_asked_for_by_configuration(rig: Agents) -> None:
    async with AgentProcess(rig, FARMD_AGENT__STOP_WORKLOADS_ON_EXIT="true") as agent:
        await rig.want(web())
        before = await rig.until(lambda r: r.health.state == "passing")
        assert await agent.end(signal.SIGTERM) == 0
        assert not alive(before)


async def test_nothing_of_the_agents_environment_reaches_a_workload_or_its_check(rig: Agents) -> None:
    check = HealthCheck(
        type="command", command=["/bin/sh", "-c", "env > new; mv new check.txt"], interval=0.1
    )
    pod = shell("env > pod.txt; exec sleep 900", env={"MINE": "1"}, health=check)
    secrets = {"FARMD_LOG__LEVEL": "debug", "CONSUL_HTTP_TOKEN": "hidden", "VAULT_TOKEN": "hidden"}
    async with AgentProcess(rig, **secrets):
        await rig.want(pod)
        running = await rig.until(lambda r: r.health.state == "passing")
        folder = Path(f"/proc/{running.pid}/cwd")
        for text in ((folder / "pod.txt").read_text(), (folder / "check.txt").read_text()):
            names = {line.partition("=")[0] for line in text.splitlines()}
            own = {name for name in names if name.startswith("FARMD_")}
            assert own == {"FARMD_NODE", "FARMD_INSTANCE"}
            assert names - own - {"PWD", "SHLVL", "_"} == {"PATH", "LANG", *LOGIN, "MINE"}
        await rig.unwant()
        await rig.until_gone()


async def test_a_second_agent_under_one_name_ends_with_a_clear_refusal(rig: Agents, tmp_path: Path) -> None:
    async with AgentProcess(rig) as first:
        await rig.want(web())
        before = await rig.until(lambda r: r.health.state == "passing")
        async with AgentProcess(rig, FARMD_AGENT__STATE_DIR=str(tmp_path / "elsewhere")) as second:
            assert await second.ended() != 0
        assert first.process.poll() is None
        assert alive(before)
