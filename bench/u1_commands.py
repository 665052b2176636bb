"""U1: how long a person waits for a list: ``farmctl`` with an empty fleet, and with 10,000 controllers.

The lists of an empty fleet are those of several nouns, because each imports other modules.

The bare process is a Python that does nothing, started in turn with the command. Both times are of the
whole process, the interpreter's start and end included.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time

from bench.processes import ROOT
from bench.rig import median, report, rig
from bench.seeding import seed_rcs
from farmd.dev.plan import environment

ROUNDS = 15
NOUNS = ("rc", "pod", "node", "service", "app")
CONTROLLERS = 10_000
START_SECONDS, LIST_SECONDS = 0.15, 1.0


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        met = [
            await asyncio.to_thread(_row, noun, "of nothing", server.address, START_SECONDS) for noun in NOUNS
        ]
        await seed_rcs(client, CONTROLLERS)
        many = f"of {CONTROLLERS:,} controllers"
        return await asyncio.to_thread(_row, "rc", many, server.address, LIST_SECONDS) and all(met)


def _row(noun: str, what: str, address: str, limit: float) -> bool:
    variables = environment(dict(os.environ)) | {"CONSUL_HTTP_ADDR": address}
    command = ["-m", "farmd.cli", noun, "list"]
    took(command, variables)  # what the machine keeps of files is the same for all others
    pairs = [(took(["-c", "pass"], variables), took(command, variables)) for _ in range(ROUNDS)]
    bare, ours = zip(*pairs, strict=True)
    seconds = median([each for each, _ in ours])
    return report(
        f"U1 farmctl {noun} list {what}, seconds", seconds, median([each for each, _ in bare]),
        f"<= {limit:g} s", seconds <= limit,
        least=round(min(each for each, _ in ours), 3),
        cpu_seconds=round(median([cpu for _, cpu in ours]), 3),
    )  # fmt: skip


def took(arguments: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """The seconds of a process, and those of its CPU."""
    before, started = _cpu(), time.monotonic()
    subprocess.run([sys.executable, *arguments], env=variables, cwd=ROOT, capture_output=True, check=True)
    return time.monotonic() - started, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
