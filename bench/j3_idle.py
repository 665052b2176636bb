"""J3: an idle farm with 10,000 jobs of ten pods that run; and the takeover of 1,000 such jobs after kill -9.

Idle: the share of a core, memory, and mutating calls by the API server's own count, for longer than a watch
lasts. Takeover: seconds from the moment when Consul freed the dead farm's locks until the last job has a
worker that has read its run; nothing is due, so no call to the API server but for the watches' own. The
objects are written into etcd as an API server would have written them, in a fiftieth of the time.
"""

from __future__ import annotations

import asyncio
import time

from bench.etcd import copies, written
from bench.heir import inherited, owned
from bench.kubernetes import JOBS, KIND, Setting, items, jobs_in, named, play, setting
from bench.rig import note, report, shared
from farmd.kubernetes.objects import PODS, SERVICES
from tests.fleet import eventually

COUNT, MEMBERS, TAKEN = 10_000, 10, 1_000
SETTLE_SECONDS, IDLE_SECONDS = 75, 80
CORE_SHARE, MEGABYTES, WORKING_SECONDS = 0.02, 350, 2.0
WITHIN = 200.0
TREES = {PODS: "pods", SERVICES: "services/specs", JOBS: f"{JOBS.group}/{JOBS.plural}"}


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with setting() as world:
        met = await _idle(world)
    async with setting() as world:
        return await _takeover(world) and met


async def _idle(world: Setting) -> bool:
    await seed(world, "idle", COUNT)
    farm = world.start_farm("idle", "idle")
    await farm.until(lambda: owned(farm, KIND) >= COUNT, WITHIN, f"{COUNT} jobs have workers")
    note(f"J3 settles for {SETTLE_SECONDS} s")
    await asyncio.sleep(SETTLE_SECONDS)
    before, used, began, most = await world.counts(), farm.cpu_seconds(), time.monotonic(), 0.0
    while time.monotonic() < began + IDLE_SECONDS:
        await asyncio.sleep(0.5)
        most = max(most, farm.resident_megabytes())
    share = (farm.cpu_seconds() - used) / (time.monotonic() - began)
    calls = (await world.counts() - before).total()
    return report(
        f"J3 idle farm with {COUNT} jobs of {MEMBERS} pods, share of a core", share, CORE_SHARE,
        "< 2 % of a core, < 350 MB, no mutating call",
        share < CORE_SHARE and most < MEGABYTES and not calls, megabytes=round(most), mutating_calls=calls,
    )  # fmt: skip


async def _takeover(world: Setting) -> bool:
    await seed(world, "taken", 2 * TAKEN)
    farms = [world.start_farm(f"farm-{number}", "taken") for number in range(2)]
    for farm in farms:
        await farm.heard("farm.ready", 60.0)

    await shared(world.store, farms, KIND, TAKEN, WITHIN)
    reads, writes = await world.counts(reads=True), await world.counts()
    taken, working = await inherited(world.store, farms, KIND)
    await asyncio.sleep(WORKING_SECONDS)
    calls = (await world.counts(reads=True) - reads + (await world.counts() - writes)).total()
    return report(
        f"J3 takeover of {taken} jobs after kill -9", working, WORKING_SECONDS,
        f"<= {WORKING_SECONDS:g} s, no call to the API server", working <= WORKING_SECONDS and not calls,
        calls=calls,
    )  # fmt: skip


async def seed(world: Setting, namespace: str, count: int) -> None:
    """Jobs whose pods run, with their services: copies of one job that a farm has brought to that."""
    started = time.monotonic()
    await jobs_in(world, namespace, 1, MEMBERS)
    farm = world.start_farm("seed", namespace)
    await world.created(namespace, MEMBERS, farm.heard("farm.ready", 60.0), WITHIN)
    await play(world, namespace, named(1, MEMBERS), {"phase": "Running"})

    async def running() -> bool:
        (job,) = await items(world, JOBS, namespace)
        active = job.get("status", {}).get("replicaStatuses", {}).get("Worker", {}).get("active")
        return bool(active == MEMBERS)

    await eventually(running, what="the first job runs")
    await farm.end()
    world.farms.remove(farm)
    found = {kind: await items(world, kind, namespace) for kind in TREES}
    names = (f"job-{number:05}" for number in range(1, count))
    await written(world.etcd.url, copies(found, TREES, "job-00000", names))

    async def there() -> bool:
        (job,) = (await items(world, JOBS, namespace))[-1:]
        return bool(job["metadata"]["name"] == f"job-{count - 1:05}")

    await eventually(there, what="the API server has the jobs")
    note(f"{count} jobs with {count * MEMBERS} pods are written after {time.monotonic() - started:.0f} s")
