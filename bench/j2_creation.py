"""J2: the time until all pods of 1,000 new jobs of ten pods are created, and the CPU time that it takes.

The jobs are there when the farm starts. Measured is the time from the first pod to the last, as a watch sees
them. Baseline: a bare client sends the same bodies in another namespace, with as many requests in flight, a
job's one after the other. The CPU time counts from the moment when the farm is ready, before it claims; it is
compared with operators on kopf, which do the same work for fewer jobs: one with Kubernetes' own client, as
kopf's documentation shows it, and, without a target, one with the leanest client that Python can have.
"""

from __future__ import annotations

import os

from bench.kubernetes import JOBS, Setting, items, jobs_in, setting, written
from bench.processes import Child
from bench.rig import note, report

COUNT, MEMBERS, KOPF_COUNT = 1_000, 10, 200
RATIO, FEWER = 1.3, 5.0
WITHIN = 250.0


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with setting() as world:
        took, used = await _ours(world)
        bare = await _bare(world)
        note(f"J2: ours {took:.2f} s, bare {bare:.2f} s")
        kopf_took, kopf_used = await _kopf(world, "official")
        _, lean_used = await _kopf(world, "lean")
    met = report(
        f"J2 until the {COUNT * MEMBERS} pods of {COUNT} jobs are created", took, bare,
        f"<= {RATIO} x a bare client", took <= RATIO * bare, cpu_seconds=round(used, 1),
    )  # fmt: skip
    each, theirs = COUNT / used, KOPF_COUNT / kopf_used
    return report(
        "J2 jobs a CPU second", each, theirs, f">= {FEWER:g} x kopf's", each >= FEWER * theirs,
        lean_kopf=round(KOPF_COUNT / lean_used, 1), jobs_a_second=round(COUNT / took, 1),
        kopf_jobs_a_second=round(KOPF_COUNT / kopf_took, 1),
    ) and met  # fmt: skip


async def _ours(world: Setting) -> tuple[float, float]:
    await jobs_in(world, "ours", COUNT, MEMBERS)
    farm = world.start_farm("jobs", "ours")
    used: list[float] = []

    async def ready() -> None:
        await farm.heard("farm.ready", 60.0)
        used.append(farm.cpu_seconds())

    took = await world.created("ours", COUNT * MEMBERS, ready(), WITHIN)
    spent = farm.cpu_seconds() - used[0]
    await farm.end()
    world.farms.remove(farm)
    return took, spent


async def _bare(world: Setting) -> float:
    await jobs_in(world, "bare", COUNT, MEMBERS)
    status = (await items(world, JOBS, "ours"))[0]["status"]
    chains = [written(job, status) for job in await items(world, JOBS, "bare")]
    return await world.created("bare", COUNT * MEMBERS, world.all(chains), WITHIN)


async def _kopf(world: Setting, client: str) -> tuple[float, float]:
    namespace = f"kopf-{client}"
    await jobs_in(world, namespace, KOPF_COUNT, MEMBERS)
    os.environ["KUBECONFIG"] = world.kubeconfig()
    operator = Child("bench.kopf_operator", [namespace, client])
    used: list[float] = []

    async def ready() -> None:
        await operator.heard("bench.ready", 60.0)
        used.append(operator.cpu_seconds())

    try:
        took = await world.created(namespace, KOPF_COUNT * MEMBERS, ready(), WITHIN)
        return took, operator.cpu_seconds() - used[0]
    finally:
        await operator.end()
