"""P7c: the requests of a farm with 1,000 services at rest, as shipped: none for a service.

A farm keeps its queries parked, renews its session, looks who leads Consul, and reads a sixteenth of each
kind's statuses now and then, whatever it owns. Counted are the requests beside queries, renewals and those
looks, for longer than a parked query waits; the baseline is the number of reads of statuses.
"""

from __future__ import annotations

import asyncio

from bench.farm_process import OF_EVERY_FARM
from bench.fleet import CHORES, fleet
from bench.p7b_deploy import deploy
from bench.rig import note, report
from farmd.deploy.spec import ContainerSpec, ServiceSpec
from farmd.kinds import KINDS
from farmd.work.kind import SWEEP_PARTS, SWEEP_SECONDS

SERVICES, OF_A_SET, NODES = 1000, 50, 500
SETTLE_SECONDS, IDLE_SECONDS = 70, 75


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    async with fleet(rcs=0, nodes=NODES) as setting:
        farm = setting.start_farm("idle")
        await setting.claimed([farm], NODES + CHORES)
        sets = [range(first, first + OF_A_SET) for first in range(0, SERVICES, OF_A_SET)]
        await asyncio.gather(*(deploy(setting, [_service(number) for number in each]) for each in sets))
        note(f"P7c {SERVICES} services are deployed")
        await asyncio.sleep(SETTLE_SECONDS)
        before, used = await farm.requests(), farm.cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        sent = await farm.requests() - before
        share = (farm.cpu_seconds() - used) / IDLE_SECONDS
    asked = {op: count for op, count in sent.items() if op not in OF_EVERY_FARM}
    sweeps = len(KINDS) * IDLE_SECONDS / SWEEP_SECONDS * SWEEP_PARTS
    return report(
        "P7c requests of a farm with 1,000 services at rest", sum(asked.values()), sweeps,
        "no more than the reads of statuses, and nothing else",
        asked.keys() <= {"list"} and sum(asked.values()) <= sweeps,
        core_share=round(share, 4),
    )  # fmt: skip


def _service(number: int) -> ServiceSpec:
    container = ContainerSpec(image=f"app@sha256:{number:064x}")
    return ServiceSpec(name=f"s{number:04}", container=container, replicas=1)
