"""Schedules on a real Consul with a real farm, and an agent that runs what their jobs ask for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from store.jobs import Job
from store.schedules import Schedule
from tests.agents import agents_on
from tests.farmctl import Farmctl
from tests.fleet import eventually, start_farm

TICK = """
name: tick
every: 1s
overlap: allow
keep: {done: 100}
job: {types: [{name: w, restart: never, pod: {id: tick, command: ["true"]}}]}
"""
TIMES = 4


async def test_r38_each_second_has_one_job_or_is_told(consul_dev: str, tmp_path: Path) -> None:
    async with agents_on(consul_dev, tmp_path) as agents:
        farm = await start_farm(agents.client, "farm-1", keys=agents.keys, kinds=("jobs", "schedules"))
        try:
            await agents.agent("n1", address="http://127.0.0.1:1")
            farmctl = Farmctl(consul_dev, agents.keys.prefix, inside=True)
            file = tmp_path / "tick.yaml"
            file.write_text(TICK)
            await asyncio.to_thread(farmctl.ok, "schedule", "create", "-f", str(file))

            async def schedule() -> Schedule:
                ((_, found),) = (await agents.dump()).tree("schedules", Schedule).values()
                return found

            async def enough() -> bool:
                fired = (await schedule()).fired
                return sum(each.outcome == "succeeded" for each in fired) >= TIMES

            await eventually(enough, within=60, what=f"{TIMES} jobs that succeeded")
            found = await schedule()
            names = [each.name for each in found.fired]
            assert len(set(names)) == len(names)
            assert len(names) + found.missed + found.skipped == round(found.last - found.created)
            jobs = {each.name for _, each in (await agents.dump()).tree("jobs", Job).values()}
            assert set(names) <= jobs
        finally:
            await farm.close()
