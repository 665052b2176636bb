"""P5: cold start on 10,000 RCs, 50,000 pods and 2,000 nodes, one farm and five at once.

Claimed: from the first lock that is taken to the last, of all kinds; baseline: as many bare lock
transactions, 31 locks each, as many in flight as one farm has. Ready: from the start of the last process,
its interpreter included, until its caches are filled and it serves; ``reading`` is the part after its
imports, and ``cpu_seconds`` what a farm computed until all was claimed.
"""

from __future__ import annotations

from bench.bare import bare_locks
from bench.fleet import ITEMS, BenchFleet, fleet
from bench.rig import median, note, report

READY_SECONDS = 3.0


async def run() -> bool:
    """Measure one farm and five, print, and tell whether the targets are met."""
    async with fleet() as setting:
        bare = median([await bare_locks(setting.client, number, ITEMS) for number in range(3)])
        results = [await _start(setting, "one farm", 1, bare), await _start(setting, "five farms", 5, bare)]
    return all(results)


async def _start(setting: BenchFleet, what: str, count: int, bare: float) -> bool:
    farms = [setting.start_farm(f"farm-{count}-{number}") for number in range(count)]
    await setting.claimed(farms)
    cpu = max(farm.cpu_seconds() for farm in farms)
    claims = sorted(claim for farm in farms for claim in farm.claims())
    ready = max((farm.at("farm.ready") or 0.0) - farm.spawned for farm in farms)
    reading = max((farm.at("farm.ready") or 0.0) - (farm.at("bench.started") or 0.0) for farm in farms)
    note(f"P5 {what}: locks " + ", ".join(str(farm.claimed()) for farm in farms))
    await setting.stop_farms()
    claimed = claims[-1][0] - claims[0][0]
    ok = claimed <= 3 * bare and ready <= READY_SECONDS
    return report(
        f"P5 cold start on 10000 RCs, {what}", claimed, bare,
        "claimed <= 3 x bare lock transactions, ready <= 3 s", ok,
        ready=round(ready, 2), reading=round(reading, 2), cpu_seconds=round(cpu, 2),
    )  # fmt: skip
