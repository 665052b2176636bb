"""A2: a farm with 1,000 apps of 20 controllers each at rest, and how fast another one takes them over.

Counted are the requests that not every farm makes, for longer than a parked query waits; an idle app
adds none to the reads of statuses that a farm makes of each kind. A takeover reads one revision an app: first
that of half of them, by a farm that has the other half, then that of all by one that has none.
The apps and their controllers are written before, as a farm writes them, in a twentieth of the time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from bench.apps import controller
from bench.farm_process import OF_EVERY_FARM, FarmProcess
from bench.rig import held, note, report, rig, shared, write_all
from farmd.apps.bundle import parse_native
from farmd.apps.changes import mutation, noun_of, speaking
from farmd.apps.facts import Act, owner_of
from farmd.commands.mutation import Call
from farmd.replication.commands import RC
from farmd.runtime.clock import SystemIds
from farmd.work.kind import SWEEP_PARTS, SWEEP_SECONDS
from store import codec, operations
from store.apps import KIND, App, AppStore, DispatchState, Entry, tracker
from store.consul.client import ConsulClient, ReadAhead
from store.operations import Operation
from store.work import Work
from tests.fleet import CLOCK, KEYS, eventually

APPS, OBJECTS = 1000, 20
SETTLE_SECONDS, IDLE_SECONDS, TAKEOVER_SECONDS, CORE = 30, 75, 2.0, 0.02


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        await _seeded(client)
        note(f"A2 {APPS} apps are recorded")
        first = FarmProcess(server.address, "first", kinds=(KIND,))
        await first.heard("farm.ready", 60.0)
        await _converged(client)
        note(f"A2 {APPS} apps converged")
        await asyncio.sleep(SETTLE_SECONDS)
        idle = await _idle(first)
        heir = FarmProcess(server.address, "heir", kinds=(KIND,))
        await heir.heard("farm.ready", 60.0)
        await shared(client, [first, heir], KIND, APPS // 2)
        await asyncio.sleep(SETTLE_SECONDS)
        half = await _taken(client, first, heir)
        # The heir has them all now, and gives none to a farm that has just come.
        last = FarmProcess(server.address, "last", kinds=(KIND,))
        await last.heard("farm.ready", 60.0)
        whole = await _taken(client, heir, last)
        await last.end()
    return idle and half and whole


async def _seeded(client: ConsulClient) -> None:
    """Write all apps as a farm would have left them: the very operations by which it makes their objects."""
    call = Call(client, KEYS, CLOCK, SystemIds(), "user/bench@here")
    known = {KEYS.cluster: await client.read(KEYS.cluster)}
    reached, writes = DispatchState(seq=1, effective=1, reached=1, swept=1, wave=1), list[Operation]()
    for number in range(APPS):
        app, store = f"app{number:04}", AppStore(client, KEYS)
        entries = [parse_native(controller(f"a{number:04}-{each:02}"), "bench") for each in range(OBJECTS)]
        for entry in entries:
            name = KEYS.name(RC.kind, entry.ref.name)
            async with ReadAhead(client, [], {**known, name: None}) as ahead:
                writes += await _made(replace(call, client=ahead), app, entry)
        writes += [store.record(app, tracker(1, entries)), store.want(app, None, App(revision=1))]
        writes.append(operations.put(KEYS.work(KIND, app), codec.encode(Work(dispatch=reached))))
    await write_all(client, writes)


async def _made(call: Call, app: str, entry: Entry) -> list[Operation]:
    part = noun_of(entry)
    wish = part.wish(entry.document or {})
    made = await mutation(part, speaking(call, owner_of(app), wish), Act("create", entry.ref, entry), wish)
    return [write for write in made.operations if write.key != KEYS.cluster]


async def _converged(client: ConsulClient) -> None:
    """Until the farm finds each app as it should be."""
    prefix = KEYS.status(KIND, "")

    async def found() -> bool:
        page = await client.list(prefix)
        return sum(b'"converged"' in raw.decoded() for raw in page.items) == APPS

    await eventually(found, what=f"{APPS} apps that converged")


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
