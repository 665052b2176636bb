"""R27: no second copy of a pod with ``stop_after`` begins before the first one has ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from store.presence import start_ticks
from tests.agents import AgentProcess, agents_on, shell
from tests.fault.rig import rig_on

pytestmark = pytest.mark.slow

SHORT = {"FARMD_AGENT__TTL": "10"}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_r27_a_pod_of_a_silent_agent_is_replaced_once_it_has_ended(
    consul_dev: str, tmp_path: Path, number: signal.Signals
) -> None:
    async with agents_on(consul_dev, tmp_path) as machine, rig_on(consul_dev) as rig:
        machine.keys = rig.keys
        await rig.farm("farm", kinds=("rcs", "nodes"), lost_after=1.0)
        first = AgentProcess(machine, "n1", **SHORT)
        async with first, AgentProcess(machine, "n2", **SHORT):
            manifest = shell("exec sleep 1000", stop_after=2.0)
            fields = {"on_lost": "replace", "min_healthy_time": 0.0, "node_selector": "node=n1"}
            rc = await rig.rc(1, manifest=manifest, **fields)
            before = await machine.until_running(manifest, instance="web")
            await rig.change(rc.id, node_selector="")
            first.process.send_signal(number)

            async def moved() -> bool:
                return [node for node, _ in await rig.cluster.pods(rc.id)] == ["n2"]

            await rig.until(moved, "another pod on n2")
            assert start_ticks(before.pid) is None
            await machine.until_running(manifest, node="n2", instance="web")
            if number == signal.SIGSTOP:
                first.process.send_signal(signal.SIGCONT)
                await machine.until_gone(node="n1", instance="web")
            assert [node for node, _ in await rig.cluster.pods(rc.id)] == ["n2"]
