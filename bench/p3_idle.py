"""P3: 10,000 idle RCs, 50,000 pods, 2,000 nodes, one farm: share of a core, memory, requests a second.

Read from the farm process's own accounting over half a minute after its cold start has settled.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bench.farm_process import FarmProcess, wait_for
from bench.rig import add_nodes, note, report, rig
from bench.seeding import seed_rcs

RCS, PODS_EACH, NODES = 10_000, 5, 2_000
SETTLE_SECONDS, MEASURE_SECONDS = 12, 25
CORE_SHARE, MEGABYTES, REQUESTS = 0.02, 200, 2.0


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        await add_nodes(client, NODES)
        await seed_rcs(client, RCS, pods_each=PODS_EACH, nodes=NODES)
        farm = FarmProcess(server.address, "idle")
        try:
            await wait_for(lambda: sum(n for _, n in farm.claims()) >= RCS, 40, "all are claimed")
            await asyncio.sleep(SETTLE_SECONDS)
            cpu, sent = _cpu_seconds(farm.process.pid), await farm.requests()
            await asyncio.sleep(MEASURE_SECONDS)
            share = (_cpu_seconds(farm.process.pid) - cpu) / MEASURE_SECONDS
            rate = (await farm.requests() - sent) / MEASURE_SECONDS
            memory = _resident_megabytes(farm.process.pid)
        finally:
            await farm.end()
    note(f"P3 {share:.2%} of a core, {memory:.0f} MB, {rate:.2f} requests/s")
    ok = share < CORE_SHARE and memory < MEGABYTES and rate < REQUESTS
    return report(
        "P3 idle farm, share of a core", share, CORE_SHARE, "< 2 % of a core, < 200 MB, < 2 requests/s", ok,
        megabytes=round(memory), requests_per_second=round(rate, 2),
    )  # fmt: skip


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
