"""A1: the time from the record of a revision with 200 controllers until all of them stand with their mark.

The bare client for the same: two reads for each object, 16 at a time, then the farm's own transactions again.
"""

from __future__ import annotations

import asyncio
import time

from bench.apps import bare, controller, setting
from bench.rig import median, replay, report
from store.consul.client import ConsulClient
from tests.app_fleet import apply
from tests.fleet import KEYS

OBJECTS, ROUNDS, IN_FLIGHT, RATIO = 200, 5, 16, 1.3


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    ours, least = [], []
    async with setting() as found:
        for number in range(ROUNDS):
            found.sent.bodies.clear()
            documents = [controller(f"r{number}-{each:03}") for each in range(OBJECTS)]
            await apply(found.call, f"app{number}", *documents)
            began = time.monotonic()
            while sum(body.count(b"/names/rcs/") for _, body in found.sent.bodies) < OBJECTS:
                await asyncio.sleep(0.002)
            ours.append(found.sent.bodies[-1][0] - began)
            bodies = bare([body for _, body in found.sent.bodies], f"bare{number}/")
            reading = await reads(found.client, number, OBJECTS)
            least.append(reading + await replay(found.address, bodies, IN_FLIGHT))
    value, baseline = median(ours), median(least)
    target = f"<= {RATIO:g} x its reads and transactions by a bare client"
    return report(
        f"A1 apply of {OBJECTS} controllers, seconds", value, baseline, target, value <= RATIO * baseline
    )


async def reads(client: ConsulClient, number: int, objects: int) -> float:
    """Seconds for two reads of each object."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(key: str) -> None:
        async with gate:
            await client.read(key)

    began = time.monotonic()
    await asyncio.gather(
        *(one(KEYS.name("rcs", f"x{number}-{each % objects:03}")) for each in range(2 * objects))
    )
    return time.monotonic() - began
