"""P5: cold start with 10,000 RCs, one farm and five at once.

Claimed: from the first lock that is taken to the last; baseline: the bare lock transactions, 31 locks
each, as many in flight as one farm has. Ready: from the start of the process's work to filled caches.
"""

from __future__ import annotations

import asyncio
import time

from bench.farm_process import FarmProcess, wait_for
from bench.rig import add_nodes, median, note, report, rig
from bench.seeding import seed_rcs
from farmd.farm.locking import IN_FLIGHT
from store import operations
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import batch_size
from store.sessions import Session
from tests.fleet import CLOCK

RCS = 10_000


async def run() -> bool:
    """Measure one farm and five, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        await add_nodes(client, 100)
        await seed_rcs(client, RCS)
        bare = median([await bare_locks(client, number, RCS) for number in range(3)])
        one = await _start(server.address, 1)
        five = await _start(server.address, 5)
        results = [await _report("one farm", *one, bare), await _report("five farms", *five, bare)]
    return all(results)


async def _report(what: str, claimed: float, ready: float, bare: float) -> bool:
    ok = claimed <= 3 * bare and ready <= 3.0
    target = "claimed <= 3 x bare lock transactions, ready <= 3 s"
    return report(f"P5 cold start of 10000 RCs, {what}", claimed, bare, target, ok, ready=round(ready, 2))


async def _start(address: str, farms: int) -> tuple[float, float]:
    processes = [FarmProcess(address, f"farm-{farms}-{number}") for number in range(farms)]
    try:
        await wait_for(lambda: sum(n for p in processes for _, n in p.claims()) >= RCS, 50, "all are claimed")
        times = sorted(at for process in processes for at, _ in process.claims())
        ready = max((p.at("ready") or 0) - (p.at("started") or 0) for p in processes)
        note(f"P5 {farms} farms: " + ", ".join(str(sum(n for _, n in p.claims())) for p in processes))
        return times[-1] - times[0], ready
    finally:
        await asyncio.gather(*(process.end() for process in processes))


async def bare_locks(client: ConsulClient, number: int, count: int) -> float:
    """Seconds for so many locks in full transactions, as many in flight as one farm has."""
    keys = Keys(f"bare{number}/")
    session = await Session.open(client, CLOCK, name="bare", ttl=3600)
    size = batch_size()
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(first: int) -> None:
        batch = []
        for item in range(first, min(first + size, count)):
            key = keys.lock("rcs", f"{item:016x}")
            batch += [operations.check_not_exists(key), operations.lock(key, b"farm/bare/0", session.id)]
        async with gate:
            await client.transaction(batch)

    started = time.monotonic()
    await asyncio.gather(*(one(first) for first in range(0, count, size)))
    took = time.monotonic() - started
    await session.destroy()
    return took
