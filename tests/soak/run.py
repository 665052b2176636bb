"""A soak: rounds of edits and faults, each followed by a quiet time in which everything must come right."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import StoreError
from tests.soak import goals, schedules, words
from tests.soak.faults import Faults
from tests.soak.fleet import Fleet, fleet_of
from tests.soak.operations import People
from tests.soak.record import Record
from tests.soak.watch import Watch

FARMS, AGENTS = 3, 6
ROUND_SECONDS = 75.0
# A freeze lasts two waits of a watch, dead sessions twice their TTL; then moves are done one by one.
QUIET_SECONDS = 300.0
EDIT_PAUSE, FAULT_PAUSE = (0.3, 2.0), (1.0, 5.0)
FAULTS_AT_ONCE = 4
TELL_SECONDS = 30.0


@dataclass
class Result:
    """What was done, and what was found wrong."""

    seed: int
    seconds: float = 0.0
    rounds: int = 0
    looks: int = 0
    audits: int = 0
    quiet_seconds: list[float] = field(default_factory=list)
    edits: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)


async def soak(seed: int, minutes: float, folder: Path, out: Path, servers: int = 1) -> Result:
    """Run rounds until the time is over or something is found; the round that began is finished.

    What the processes and the store take is written to the file ``out``, a line every few seconds.
    """
    result, began = Result(seed), time.monotonic()
    async with fleet_of(FARMS, AGENTS, folder, servers) as fleet:
        people = People(fleet, random.Random(f"{seed}/people"), result.edits)
        watch = Watch(fleet, people.killed)
        faults = Faults(fleet, people, random.Random(f"{seed}/faults"), result.faults, watch.restored)
        record = Record(fleet, watch, out)
        watching, recording = asyncio.create_task(watch.run()), asyncio.create_task(record.run())
        try:
            await people.begin()
            result.found += await _quiet(fleet, result)
            while (
                not (result.found or watch.found or watching.done())
                and time.monotonic() < began + 60 * minutes
            ):
                fleet.smoke.flapping = True
                await _chaos(people, faults, random.Random(f"{seed}/{result.rounds}"), result)
                fleet.smoke.flapping = False
                result.found += await _quiet(fleet, result)
                result.rounds += 1
                await record.quiet(result.rounds)
                told = f"round {result.rounds}: {result.edits.total()} edits, {result.faults.total()} faults,"
                print(f"{told} whole again after {result.quiet_seconds[-1]:.0f} s", flush=True)
            if watching.done():
                watching.result()
        finally:
            for task in (watching, recording):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        result.found += watch.found
        result.looks, result.audits = watch.looks, watch.audits
    result.seconds = time.monotonic() - began
    return result


async def _chaos(people: People, faults: Faults, rng: random.Random, result: Result) -> None:
    """Edits and faults side by side; then all faults end and people take back what keeps the fleet ill."""
    until = time.monotonic() + ROUND_SECONDS
    running: set[asyncio.Task[None]] = set()

    async def edits() -> None:
        while time.monotonic() < until:
            await people.act()
            await asyncio.sleep(rng.uniform(*EDIT_PAUSE))

    editing = asyncio.create_task(edits())
    while time.monotonic() < until:
        running = {task for task in running if not task.done() or task.exception()}
        if len(running) < FAULTS_AT_ONCE:
            running.add(asyncio.create_task(faults.one()))
        await asyncio.sleep(rng.uniform(*FAULT_PAUSE))
    await asyncio.gather(editing, *running)
    faults.heal()
    while True:
        try:
            return await people.tidy()
        except StoreError as error:
            result.edits[f"tidy refused: {error.code}"] += 1
            await asyncio.sleep(1.0)


async def _quiet(fleet: Fleet, result: Result) -> list[str]:
    """Wait until everything is as people want it; what is not after the limit is returned.

    A rollout that met a fault waits for a person, also after the fault is over.
    """
    began, last, tell_at = time.monotonic(), ["nothing was seen"], TELL_SECONDS
    since = time.time()
    while last and time.monotonic() < began + QUIET_SECONDS:
        try:
            await words.tend(fleet)
            await schedules.tend(fleet, since)
            last = await goals.unfinished(fleet)
        except StoreError as error:
            last = [f"{error.code}: {error.message}"]
        if last and time.monotonic() > began + tell_at:
            tell_at += TELL_SECONDS
            print(f"not whole after {time.monotonic() - began:.0f} s:", *last[:5], sep="\n  ", flush=True)
        await asyncio.sleep(1.0)
        for part in fleet.parts:
            part.proxy.requests.clear()
    result.quiet_seconds.append(time.monotonic() - began)
    return [f"not so {QUIET_SECONDS:.0f} s after the last fault: {line}" for line in last]
