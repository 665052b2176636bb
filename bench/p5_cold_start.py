"""P5: cold start on 10,000 RCs and 2,000 nodes with agents, one farm and five at once.

Claimed: the time from the first lock that is taken to the last, of all kinds; the baseline is as many bare
lock transactions of 31 locks, with as many in flight as a farm has. Ready: the time from the start of the
last process, its interpreter included, until its caches are filled and it serves; ``reading`` is the part
after its imports. ``whole`` is the time from the start of the last process until all items are claimed, and
``cpu_seconds`` the most CPU time that a farm used for that.

The target is for 10,000 RCs with one pod each. The second lines, without a target, are for the 50,000 pods of
P3: five farms on one machine read them one after the other, which farms on machines of their own do not.
"""

from __future__ import annotations

from bench.bare import bare_locks
from bench.fleet import ITEMS, PODS_EACH, RCS, TIMES, BenchFleet, fleet
from bench.rig import median, note, report

READY_SECONDS = 3.0
WHOLE_SECONDS = 20.0
"""The target of a larger fleet than usual: seconds until all items are claimed."""


async def run() -> bool:
    """Measure one farm and five, with one pod an RC and with five; tell whether the targets are met."""
    if TIMES > 1:
        return await _measured(pods_each=PODS_EACH, target=True)
    met = [await _measured(pods_each=1, target=True), await _measured(pods_each=PODS_EACH, target=False)]
    return all(met)


async def _measured(*, pods_each: int, target: bool) -> bool:
    async with fleet(pods_each=pods_each) as setting:
        what = f"{RCS} RCs, {RCS * pods_each} pods"
        bare = median([await bare_locks(setting.client, number, ITEMS) for number in range(3)])
        one = await _start(setting, f"{what}, one farm", 1, bare, target=target)
        five = await _start(setting, f"{what}, five farms", 5, bare, target=target)
    return one and five


async def _start(setting: BenchFleet, what: str, count: int, bare: float, *, target: bool) -> bool:
    farms = [setting.start_farm(f"farm-{count}-{number}") for number in range(count)]
    await setting.claimed(farms)
    cpu = max(farm.cpu_seconds() for farm in farms)
    claims = sorted(claim for farm in farms for claim in farm.claims())
    ready = max((farm.at("farm.ready") or 0.0) - farm.spawned for farm in farms)
    reading = max((farm.at("farm.ready") or 0.0) - (farm.at("bench.started") or 0.0) for farm in farms)
    note(f"P5 {what}: locks " + ", ".join(str(farm.claimed()) for farm in farms))
    await setting.stop_farms()
    claimed, whole = claims[-1][0] - claims[0][0], claims[-1][0] - max(farm.spawned for farm in farms)
    within = claimed <= 3 * bare and ready <= READY_SECONDS
    goal = "claimed <= 3 x bare lock transactions, ready <= 3 s"
    if TIMES > 1:
        within, goal = whole <= WHOLE_SECONDS, "whole <= 20 s"
    if not target:
        goal = "none; beside the other"
    return report(
        f"P5 cold start, {what}", claimed, bare, goal, within or not target,
        whole=round(whole, 2), cpu_seconds=round(cpu, 2), ready=round(ready, 2), reading=round(reading, 2),
    )  # fmt: skip
