"""S1: 1,000 of 10,000 schedules are due in one second: the time until all of their jobs are made.

Before that the farm is idle: then no request is sent for a schedule, because each farm has one timer for all.
The baseline is a bare client that sends the very transactions of the farm once more, under another prefix, 16
at a time. The jobs' pods are no part of it: no farm works on jobs.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from bench.farm_process import OF_EVERY_FARM, FarmProcess
from bench.processes import wait_for
from bench.rig import note, prepared, replay, report, rig, write_all
from bench.seeding import rc_id
from store import codec, operations
from store.consul.client import ConsulClient
from store.schedules import Schedule
from store.times import Time, rfc3339
from tests.fleet import KEYS

SCHEDULES, DUE, PREFIX, IN_FLIGHT = 10_000, 1_000, "bench/", 16
SETTLE_SECONDS, IDLE_SECONDS, LEAD_SECONDS, WITHIN = 70, 75, 30.0, 120.0
DAY, RATIO, SHARE = 86_400.0, 2.0, 0.01
POD = {"id": "tick", "command": ["date"]}
JOB = {"types": [{"name": "w", "replicas": 1, "restart": "never", "pod": POD}]}


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        now = time.time()
        schedules = [_schedule(number, now) for number in range(SCHEDULES)]
        await write_all(client, [each for schedule in schedules for each in _records(schedule)])
        farm = FarmProcess(server.address, "timer", kinds=("schedules",))
        try:
            await farm.until(lambda: farm.claimed() >= SCHEDULES, WITHIN, "all schedules are claimed")
            note(f"S1 {SCHEDULES} schedules are claimed")
            idle = await _idle(farm)
            return await _due(client, server.address, farm, schedules[:DUE]) and idle
        finally:
            await farm.end()


async def _idle(farm: FarmProcess) -> bool:
    """The requests and the CPU of a farm with nothing due."""
    await asyncio.sleep(SETTLE_SECONDS)
    before, used = await farm.requests(), farm.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    sent = await farm.requests() - before
    share = (farm.cpu_seconds() - used) / IDLE_SECONDS
    asked = {op: count for op, count in sent.items() if op not in OF_EVERY_FARM | {"list"}}
    return report(
        "S1 share of a core of a farm with 10,000 schedules at rest", share, SHARE,
        f"< {SHARE:.0%} of a core, no request for a schedule", share < SHARE and not asked, asked=asked,
    )  # fmt: skip


async def _due(client: ConsulClient, address: str, farm: FarmProcess, due: list[Schedule]) -> bool:
    """The jobs of one second, and the same transactions of a bare client."""
    at = float(int(time.time() + LEAD_SECONDS))
    moved = [msgspec.structs.replace(each, start=rfc3339(at)) for each in due]
    await write_all(
        client, [operations.put(KEYS.record("schedules", each.id), codec.encode(each)) for each in moved]
    )
    offset = time.time() - time.monotonic()

    def made() -> list[float]:
        return [each["at"] for each in farm.events if each["event"] == "bench.placed"]

    await wait_for(lambda: len(made()) >= DUE, LEAD_SECONDS + WITHIN, f"{DUE} jobs are made")
    took = made()[-1] + offset - at
    bodies = await prepared(client, await farm.bodies(), PREFIX, of=KEYS.name("jobs", ""))
    bare = await replay(address, bodies, IN_FLIGHT)
    early = made()[0] + offset - at
    return report(
        f"S1 {DUE} schedules due in one second, until all jobs are made", took, bare,
        f"<= {RATIO} x the bare transactions, none early", took <= RATIO * bare and early >= 0,
        transactions=len(bodies), first=round(early, 3),
    )  # fmt: skip


def _schedule(number: int, now: Time) -> Schedule:
    start = rfc3339(float(int(now + DAY)))
    return Schedule(
        id=rc_id(number), name=f"tick-{number:05}", every=DAY, start=start, job=JOB, created=now, last=now
    )


def _records(schedule: Schedule) -> list[operations.Operation]:
    return [
        operations.put(KEYS.record("schedules", schedule.id), codec.encode(schedule)),
        operations.put(KEYS.name("schedules", schedule.name), codec.encode(schedule.id)),
    ]
