"""P4: takeover of 1,000 RCs by one survivor and by four, after a clean stop and after kill -9.

Seconds from the SIGTERM, or from the moment that Consul freed the dead farm's locks, until the last of its
RCs has a worker again; its share of the nodes is taken over in the same moments. The farms share the RCs that
bear a label, 1,000 each; one more farm works on all others of the 10,000. Baseline: as many bare lock
transactions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.bare import bare_locks
from bench.farm_process import FarmProcess
from bench.fleet import NODES, RCS, BenchFleet, fleet
from bench.processes import wait_for
from bench.rig import note, report
from store.locks import Holder

EACH = 1000
OURS, OTHERS = "bench=moving", "bench!=moving"
CLEAN_SECONDS, KILLED_SECONDS = 1.0, 2.0


async def takeover(survivors: int) -> bool:
    """Measure a clean stop and a kill -9, print, and tell whether the targets are met."""
    sharing = EACH * (survivors + 1)
    async with fleet(labelled=sharing) as setting:
        bare = await bare_locks(setting.client, 0, EACH)
        others = setting.start_farm("others", OTHERS)
        farms = [setting.start_farm(f"farm-{number}", OURS) for number in range(survivors + 1)]
        await setting.claimed([others, *farms], RCS + NODES, within=120)
        await _settled(setting, farms)
        stopped = await _clean(setting, farms[0], farms[1:])
        again = setting.start_farm("farm-again", OURS)
        await again.heard("farm.ready", 60)
        await _settled(setting, [*farms[1:], again])
        killed = await _killed(setting, again, farms[1:])
    results = [
        _row("clean stop", survivors, stopped, bare, CLEAN_SECONDS),
        _row("kill -9", survivors, killed, bare, KILLED_SECONDS),
    ]
    return all(results)


def _row(how: str, survivors: int, took: tuple[float, int], bare: float, limit: float) -> bool:
    seconds, items = took
    name = f"P4 takeover after {how}, survivors: {survivors}"
    return report(name, seconds, bare, f"<= {limit:.0f} s", seconds <= limit, items=items)


async def _settled(setting: BenchFleet, farms: Sequence[FarmProcess]) -> None:
    """Everybody has about its share, and no more is handed over."""
    deadline, before = time.monotonic() + 120, dict[str, int]()
    while True:
        held = {farm.name: await _held(setting, farm) for farm in farms}
        if held == before and max(held.values()) <= 1.1 * EACH and sum(held.values()) == EACH * len(farms):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the farms did not share the items evenly: {held}")
        before = held
        await asyncio.sleep(1.0)


async def _held(setting: BenchFleet, farm: FarmProcess) -> int:
    page = await setting.client.list(setting.keys.lock("rcs", ""))
    return sum(Holder.parse(raw.decoded()).id == farm.name for raw in page.items)


async def _clean(setting: BenchFleet, leaving: FarmProcess, others: list[FarmProcess]) -> tuple[float, int]:
    items = await _held(setting, leaving)
    started = time.monotonic()
    await leaving.end()
    return await _last_taken(others, started, items) - started, items


async def _killed(setting: BenchFleet, dying: FarmProcess, others: list[FarmProcess]) -> tuple[float, int]:
    items = await _held(setting, dying)
    presence = setting.keys.farm(dying.name)
    index, _ = await setting.client.get(presence)
    await dying.end(kill=True)
    note("P4 waiting for Consul to free the locks")
    entry: object = "present"
    while entry is not None:
        index, entry = await setting.client.get(presence, index=index, wait=30)
    freed = time.monotonic()
    return await _last_taken(others, freed, items) - freed, items


async def _last_taken(others: list[FarmProcess], since: float, items: int) -> float:
    # A claim may happen a moment before this process sees the locks freed.
    def after() -> list[tuple[float, int]]:
        return [taken for farm in others for taken in farm.taken("rcs", since - 0.2)]

    await wait_for(lambda: sum(count for _, count in after()) >= items, 30, f"all {items} are taken over")
    return max(at for at, _ in after())
