"""A2: a farm with 1,000 apps of 20 controllers each at rest, and how fast another one takes them over.

Counted are the requests beside parked queries and renewals, for longer than a parked query waits; an idle app
adds none to the reads of statuses that a farm makes of each kind. A takeover reads one revision an app.
"""

from __future__ import annotations

import asyncio
import time

from bench.apps import controller
from bench.farm_process import FarmProcess
from bench.rig import note, report, rig
from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from farmd.work.sweep import SWEEP_PARTS, SWEEP_SECONDS
from store.consul.client import ConsulClient
from tests.app_fleet import apply
from tests.fleet import CLOCK, KEYS

APPS, OBJECTS, AT_ONCE = 1000, 20, 8
SETTLE_SECONDS, IDLE_SECONDS, TAKEOVER_SECONDS, CORE = 30, 75, 2.0, 0.02
OF_EVERY_FARM = {"watch", "session_renew"}


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        first = FarmProcess(server.address, "first", kinds=("apps",))
        await first.heard("farm.ready", 60.0)
        await _applied(client)
        note(f"A2 {APPS} apps are recorded")
        await _reached(client)
        await asyncio.sleep(SETTLE_SECONDS)
        idle = await _idle(first)
        heir = FarmProcess(server.address, "heir", kinds=("apps",))
        await heir.heard("farm.ready", 60.0)
        await asyncio.sleep(SETTLE_SECONDS)
        taken = await _taken(first, heir)
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
    prefix = KEYS.work("apps", "")
    while True:
        page = await client.list(prefix)
        if sum(b'"reached":1' in raw.decoded() for raw in page.items) == APPS:
            return
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


async def _taken(first: FarmProcess, heir: FarmProcess) -> bool:
    """The takeover after a clean stop: locks, workers, and one read an app."""
    before, had = await heir.requests(), sum(count for _, count in heir.taken("apps"))
    note(f"A2 the heir has {had} apps")
    began = time.monotonic()
    await first.end()
    ended = time.monotonic()

    def all_taken() -> bool:
        return sum(count for _, count in heir.taken("apps")) >= APPS

    await heir.until(all_taken, 60.0, f"{APPS} apps are taken")
    took = max(at for at, _ in heir.taken("apps")) - began
    await asyncio.sleep(10)
    reads = (await heir.requests() - before)["get"]
    ok: bool = took <= TAKEOVER_SECONDS and reads <= 2 * (APPS - had)
    return report(
        f"A2 takeover of {APPS - had} apps, seconds", took, ended - began,
        f"<= {TAKEOVER_SECONDS:g} s, one revision and one status read an app", ok, reads=reads,
    )  # fmt: skip
