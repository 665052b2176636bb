"""A2: a farm with 1,000 apps of 20 controllers each at rest, and how fast another one takes them over.

Counted are the requests beside parked queries and renewals, for longer than a parked query waits; an idle app
adds none to the reads of statuses that a farm makes of each kind. A takeover reads one revision an app.
"""

from __future__ import annotations

import asyncio
import time

from bench.apps import controller
from bench.farm_process import FarmProcess
from bench.rig import held, note, report, rig, shared
from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from farmd.work.sweep import SWEEP_PARTS, SWEEP_SECONDS
from store.apps import KIND
from store.consul.client import ConsulClient
from tests.app_fleet import apply
from tests.fleet import CLOCK, KEYS

APPS, OBJECTS, AT_ONCE = 1000, 20, 8
SETTLE_SECONDS, IDLE_SECONDS, TAKEOVER_SECONDS, CORE = 30, 75, 2.0, 0.02
TELLING_SECONDS = 15.0
OF_EVERY_FARM = {"watch", "session_renew"}


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        first = FarmProcess(server.address, "first", kinds=(KIND,))
        await first.heard("farm.ready", 60.0)
        await _applied(client)
        note(f"A2 {APPS} apps are recorded")
        await _reached(client)
        await asyncio.sleep(SETTLE_SECONDS)
        idle = await _idle(first)
        heir = FarmProcess(server.address, "heir", kinds=(KIND,))
        await heir.heard("farm.ready", 60.0)
        await shared(client, [first, heir], KIND, APPS // 2)
        await asyncio.sleep(SETTLE_SECONDS)
        taken = await _taken(client, first, heir)
        await heir.end()
    return idle and taken


async def _applied(client: ConsulClient) -> None:
    """All apps, as people apply them."""
    call, gate = Call(client, KEYS, CLOCK, SystemIds(), "user/bench@here"), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            names = [f"a{number:04}-{each:02}" for each in range(OBJECTS)]
            await apply(call, f"app{number:04}", *map(controller, names))

    await asyncio.gather(*map(one, range(APPS)))


async def _reached(client: ConsulClient) -> None:
    """Until the farm made all objects, which takes minutes: twenty controllers an app."""
    prefix, told = KEYS.work(KIND, ""), 0.0
    while True:
        page = await client.list(prefix)
        if (reached := sum(b'"reached":1' in raw.decoded() for raw in page.items)) == APPS:
            return
        if time.monotonic() - told > TELLING_SECONDS:
            told = time.monotonic()
            note(f"A2 {reached} of {APPS} apps are reached")
        await asyncio.sleep(1)


async def _idle(farm: FarmProcess) -> bool:
    before, used = await farm.requests(), farm.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    sent = await farm.requests() - before
    share = (farm.cpu_seconds() - used) / IDLE_SECONDS
    asked = sum(count for op, count in sent.items() if op not in OF_EVERY_FARM)
    sweeps = IDLE_SECONDS / SWEEP_SECONDS * SWEEP_PARTS
    return report(
        f"A2 requests of a farm with {APPS} apps of {OBJECTS} objects at rest", asked, sweeps,
        f"no more than the reads of statuses, < {CORE:.0%} of a core",
        asked <= sweeps and share < CORE, core_share=round(share, 4),
    )  # fmt: skip


async def _taken(client: ConsulClient, first: FarmProcess, heir: FarmProcess) -> bool:
    """The takeover after a clean stop: locks, workers, and one read an app."""
    moving, before = await held(client, first, KIND), await heir.requests()
    note(f"A2 the heir takes {moving} apps over")
    began = time.monotonic()
    await first.end()
    ended = time.monotonic()

    def taken() -> list[tuple[float, int]]:
        return heir.taken(KIND, began)

    await heir.until(lambda: sum(count for _, count in taken()) >= moving, 60.0, f"{moving} apps are taken")
    took = max(at for at, _ in taken()) - began
    await asyncio.sleep(10)
    reads = (await heir.requests() - before)["get"]
    return report(
        f"A2 takeover of {moving} apps, seconds", took, ended - began,
        f"<= {TAKEOVER_SECONDS:g} s, one revision and one status read an app",
        took <= TAKEOVER_SECONDS and moving <= reads <= 2 * moving, reads=reads,
    )  # fmt: skip
