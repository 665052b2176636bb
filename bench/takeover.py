"""P4: takeover of 1,000 RCs by one survivor and by four, after a clean stop and after kill -9.

Measured: seconds from the SIGTERM, or from the moment when Consul freed the dead farm's locks, until the last
of these locks is taken again (of its RCs and of its share of the nodes). ``working`` is the time until the
last RC has a worker again, which first re-reads what it plans from; farms on one machine do that in turns.
Consul frees the locks of a killed farm 17 to 20 s after its death: it waits for twice the session's TTL of
10 s since the last renewal. The figures leave that part of the outage out.
The farms share the labelled RCs, 1,000 each; one more farm works on all others of the 10,000.
Baseline: as many bare lock transactions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.bare import bare_locks
from bench.farm_process import FarmProcess
from bench.fleet import NODES, RCS, TIMES, BenchFleet, fleet
from bench.processes import wait_for
from bench.rig import held, note, report, shared

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
        await setting.claimed([others, *farms], RCS + NODES, within=120 * TIMES)
        await shared(setting.client, farms, "rcs", EACH)
        stopped = await _clean(setting, farms[0], [others, *farms[1:]])
        again = setting.start_farm("farm-again", OURS)
        await again.heard("farm.ready", 60 * TIMES)
        await shared(setting.client, [*farms[1:], again], "rcs", EACH)
        killed = await _killed(setting, again, [others, *farms[1:]])
    results = [
        _row("clean stop", survivors, stopped, bare, CLEAN_SECONDS),
        _row("kill -9", survivors, killed, bare, KILLED_SECONDS),
    ]
    return all(results)


@dataclass(frozen=True)
class _Takeover:
    """The numbers of RCs and of locks taken over; seconds to the last lock, and to the last RC's worker."""

    items: int
    locks: int
    taken: float
    working: float


def _row(how: str, survivors: int, seen: _Takeover, bare: float, limit: float) -> bool:
    return report(
        f"P4 takeover after {how}, survivors: {survivors}", seen.taken, bare, f"<= {limit:.0f} s",
        seen.taken <= limit, rcs=seen.items, locks=seen.locks, working=round(seen.working, 2),
    )  # fmt: skip


async def _clean(setting: BenchFleet, leaving: FarmProcess, others: list[FarmProcess]) -> _Takeover:
    locks = await held(setting.client, leaving, "rcs"), await held(setting.client, leaving)
    started = time.monotonic()
    await leaving.end()
    return await _watched(others, started, *locks)


async def _killed(setting: BenchFleet, dying: FarmProcess, others: list[FarmProcess]) -> _Takeover:
    locks = await held(setting.client, dying, "rcs"), await held(setting.client, dying)
    presence = setting.keys.farm(dying.name)
    index, _ = await setting.client.get(presence)
    await dying.end(kill=True)
    note("P4 waiting for Consul to free the locks")
    entry: object = "present"
    while entry is not None:
        index, entry = await setting.client.get(presence, index=index, wait=30)
    # A farm may take a lock a moment before this process sees the locks freed.
    return await _watched(others, time.monotonic(), *locks, early=0.2)


async def _watched(
    others: list[FarmProcess], since: float, items: int, locks: int, early: float = 0.0
) -> _Takeover:
    def taken() -> list[tuple[float, int]]:
        return [claim for farm in others for claim in farm.claims(since - early)]

    def working() -> list[tuple[float, int]]:
        return [claim for farm in others for claim in farm.taken("rcs", since - early)]

    await wait_for(lambda: sum(count for _, count in taken()) >= locks, 60, f"{locks} locks are taken over")
    last = max(at for at, _ in taken())
    await wait_for(lambda: sum(count for _, count in working()) >= items, 60, f"{items} RCs have workers")
    return _Takeover(items, locks, last - since, max(at for at, _ in working()) - since)
