"""P4: takeover of 1,000 RCs by one survivor and by four, after a clean stop and after kill -9.

Seconds from the SIGTERM, or from the moment that Consul freed the dead farm's locks, until the last of its
items is claimed. Baseline: the same number of bare lock transactions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.farm_process import FarmProcess, wait_for
from bench.p5_cold_start import bare_locks
from bench.rig import add_nodes, note, report, rig
from bench.seeding import seed_rcs
from store.consul.client import ConsulClient
from store.locks import Holder
from tests.fleet import KEYS

EACH = 1000


async def takeover(survivors: int) -> bool:
    """Measure a clean stop and a kill -9, print, and tell whether the targets are met."""
    names = [f"farm-{number}" for number in range(survivors + 1)]
    async with rig() as (server, client):
        await add_nodes(client, 100)
        await seed_rcs(client, EACH * (survivors + 1))
        bare = await bare_locks(client, 0, EACH)
        farms = [FarmProcess(server.address, name) for name in names]
        try:
            await wait_for(lambda: _claimed(farms) >= EACH * len(names), 30, "all are claimed")
            await _settled(client, names)
            stopped = await _clean(client, farms[0], farms[1:])
            again = FarmProcess(server.address, "farm-again")
            farms.append(again)
            await wait_for(lambda: _claimed([again]) >= EACH // 2, 30, "its share arrives")
            await _settled(client, [*names[1:], "farm-again"])
            killed = await _killed(client, again, farms[1:-1])
        finally:
            await asyncio.gather(*(farm.end() for farm in farms))
    results = [
        _row("clean stop", survivors, stopped, bare, 1.0),
        _row("kill -9", survivors, killed, bare, 2.0),
    ]
    return all(results)


def _row(how: str, survivors: int, took: tuple[float, int], bare: float, limit: float) -> bool:
    seconds, items = took
    name = f"P4 takeover after {how}, survivors: {survivors}"
    return report(name, seconds, bare, f"<= {limit:.0f} s", seconds <= limit, items=items)


def _claimed(farms: list[FarmProcess]) -> int:
    return sum(count for farm in farms for _, count in farm.claims())


async def _settled(client: ConsulClient, farms: Sequence[str]) -> None:
    """Everybody has about its share, and no more is handed over."""
    deadline = time.monotonic() + 40
    while max([await _held(client, farm) for farm in farms]) > 1.1 * EACH:
        if time.monotonic() > deadline:
            raise RuntimeError("the farms did not share the items evenly")
        await asyncio.sleep(0.5)


async def _held(client: ConsulClient, farm: str) -> int:
    page = await client.list(KEYS.tree("locks"))
    return sum(Holder.parse(raw.decoded()).id == farm for raw in page.items)


async def _clean(client: ConsulClient, leaving: FarmProcess, others: list[FarmProcess]) -> tuple[float, int]:
    items = await _held(client, "farm-0")
    started = time.monotonic()
    await leaving.end()
    return await _last_claim(others, started, items) - started, items


async def _killed(client: ConsulClient, dying: FarmProcess, others: list[FarmProcess]) -> tuple[float, int]:
    items = await _held(client, "farm-again")
    presence = KEYS.farm("farm-again")
    index, _ = await client.get(presence)
    await dying.end(kill=True)
    note("P4 waiting for Consul to free the locks")
    entry: object = "present"
    while entry is not None:
        index, entry = await client.get(presence, index=index, wait=30)
    freed = time.monotonic()
    return await _last_claim(others, freed, items) - freed, items


async def _last_claim(others: list[FarmProcess], since: float, items: int) -> float:
    # A claim may happen a moment before this process sees the locks freed.
    def after() -> list[tuple[float, int]]:
        return [claim for farm in others for claim in farm.claims(since - 0.2)]

    await wait_for(lambda: sum(count for _, count in after()) >= items, 30, f"all {items} are taken over")
    return max(at for at, _ in after())
