"""J1: the mutating calls of 1,000 jobs of ten pods, from creation to success, by the API server's own count.

The least that there can be is one service, ten pods and three conditions (created, running, succeeded) a job.
All pods of a job begin, and later end, within a moment; those of the kubelet are not counted.
"""

from __future__ import annotations

from bench.kubernetes import JOBS, items, jobs_in, named, play, setting
from bench.rig import note, report
from tests.fleet import eventually

COUNT, MEMBERS, CONDITIONS = 1_000, 10, 3
RATIO = 1.05
WITHIN = 400.0
KUBELET = ("PATCH", "pods/status")


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    async with setting() as world:
        await jobs_in(world, "ours", COUNT, MEMBERS)
        before = await world.counts()
        farm = world.start_farm("jobs", "ours")
        await world.created("ours", COUNT * MEMBERS, farm.heard("farm.ready", 60.0), WITHIN)
        pods = named(COUNT, MEMBERS)
        for phase in ("Running", "Succeeded"):
            took = await play(world, "ours", pods, {"phase": phase})
            note(f"J1: {len(pods)} pods are {phase.lower()} after {took:.1f} s")

            async def so(phase: str = phase) -> bool:
                found = [job.get("status", {}) for job in await items(world, JOBS, "ours")]
                return all(_holds(status, phase) for status in found)

            await eventually(so, what=f"all jobs are {phase}", within=WITHIN)
        sent = await world.counts() - before
    sent.pop(KUBELET)
    value, baseline = sent.total() / COUNT, 1 + MEMBERS + CONDITIONS
    return report(
        f"J1 mutating calls a job of {MEMBERS} pods, {COUNT} jobs", value, baseline,
        f"<= {RATIO} x one service, {MEMBERS} pods and {CONDITIONS} conditions", value <= RATIO * baseline,
        **{" ".join(key): count for key, count in sorted(sent.items())},
    )  # fmt: skip


def _holds(status: dict[str, list[dict[str, str]]], condition: str) -> bool:
    return any(
        each["type"] == condition and each["status"] == "True" for each in status.get("conditions", ())
    )
