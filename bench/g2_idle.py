"""G2: 1,000 Knative Services at rest beside as many of another farm, and their takeover after ``kill -9``.

Idle: calls to the API server that change something, or that read what rollouts are made of, and the share of
a core of one farm. Takeover: seconds from the moment when Consul freed the dead farm's locks until the last
service has a worker; nothing is due, so there is no call. The objects are copies of one service that a farm
has brought to rest, written into etcd as an API server would have written them.
"""

from __future__ import annotations

import asyncio
import time

from bench.etcd import copies, written
from bench.heir import inherited
from bench.knative import KIND, NAMESPACE, READ, Rolling, played
from bench.kubernetes import Setting, items, setting
from bench.rig import note, report, shared
from farmd.kubernetes.knative.objects import SERVICES
from farmd.kubernetes.objects import PODS
from tests.fleet import eventually

TAKEN = 1_000
SETTLE_SECONDS, IDLE_SECONDS = 30.0, 60.0
WORKING_SECONDS = 2.0
WITHIN = 200.0
TREES = {each: f"{each.group}/{each.plural}" for each in READ} | {PODS: "pods"}


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with setting() as world:
        found = await _seeded(world)
        farms = [world.start_farm(f"farm-{number}", NAMESPACE) for number in range(2)]
        for farm in farms:
            await farm.heard("farm.ready", 60.0)
        await shared(world.store, farms, KIND, TAKEN, WITHIN)
        note(f"G2 settles for {SETTLE_SECONDS:g} s")
        await asyncio.sleep(SETTLE_SECONDS)
        before, used, began = await _calls(found), farms[1].cpu_seconds(), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        share = (farms[1].cpu_seconds() - used) / (time.monotonic() - began)
        calls = await _calls(found) - before
        idle = report(
            f"G2 calls of farms with {2 * TAKEN} idle rollouts in {IDLE_SECONDS:g} s", calls, 0,
            "no call", not calls,
            share_of_a_core=round(share, 4), megabytes=round(farms[1].resident_megabytes()),
        )  # fmt: skip
        before = await _calls(found)
        taken, working = await inherited(world.store, farms, KIND)
        await asyncio.sleep(WORKING_SECONDS)
        calls = await _calls(found) - before
    return report(
        f"G2 takeover of {taken} rollouts after kill -9", working, WORKING_SECONDS,
        f"<= {WORKING_SECONDS:g} s, no call to the API server", working <= WORKING_SECONDS and not calls,
        calls=calls,
    ) and idle  # fmt: skip


async def _calls(found: Rolling) -> int:
    return (await found.calls()).total() + (await found.calls(reads=True)).total()


async def _seeded(world: Setting) -> Rolling:
    """Twice as many services at rest as a farm is to have."""
    async with played(world) as found:
        farm = world.start_farm("seed", NAMESPACE)
        await farm.heard("farm.ready", 60.0)
        await found.push(_name(0), 1, 1, 10)
        await found.rests(_name(0), 1, WITHIN)
        await found.quiet(12.0)
        await farm.end()
        world.farms.remove(farm)
    started = time.monotonic()
    there = {kind: await items(world, kind, NAMESPACE) for kind in TREES}
    names = map(_name, range(1, 2 * TAKEN))
    await written(world.etcd.url, copies(there, TREES, _name(0), names))

    async def all_there() -> bool:
        last = (await items(world, SERVICES, NAMESPACE))[-1]["metadata"]["name"]
        return bool(last == _name(2 * TAKEN - 1))

    await eventually(all_there, what="the API server has the services")
    note(f"{2 * TAKEN} services are written after {time.monotonic() - started:.0f} s")
    return found


def _name(number: int) -> str:
    return f"web{number:05}"
