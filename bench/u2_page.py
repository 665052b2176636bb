"""U2: how long a person waits for the farm's page among 10,000 controllers, until its first byte.

All controllers were created within a few seconds, so the present hour of the audit log has as many records.
The bare request gets the style sheet, a file, from the same server on the same connection, in turn with the
page. The first view of each page, with the import of what draws it, is left out.
"""

from __future__ import annotations

import time

import aiohttp

from bench.farm_process import FarmProcess
from bench.rig import median, report, rig
from bench.seeding import rc_id, register_nodes, seed_rcs

CONTROLLERS, NODES, ROUNDS = 10_000, 20, 21
SECONDS = 0.05
STYLE = "/static/page.css"
PAGES = ("/", "/controllers", "/controllers?q=app-77", f"/controllers/{rc_id(7)}", "/audit")


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with rig() as (server, client):
        await register_nodes(client, NODES)
        await seed_rcs(client, CONTROLLERS)
        farm = FarmProcess(server.address, "farm")
        try:
            await farm.heard("farm.ready", 60.0)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{farm.port()}") as session:
                met = [await _row(farm, session, page) for page in PAGES]
        finally:
            await farm.end()
    return all(met)


async def _row(farm: FarmProcess, session: aiohttp.ClientSession, page: str) -> bool:
    await _took(session, page)
    before = farm.cpu_seconds()
    pairs = [(await _took(session, STYLE), await _took(session, page)) for _ in range(ROUNDS)]
    cpu = (farm.cpu_seconds() - before) / ROUNDS
    bare, ours = zip(*pairs, strict=True)
    value = median(ours)
    return report(
        f"U2 first byte of {page} among {CONTROLLERS:,} controllers, seconds", value, median(bare),
        f"<= {SECONDS:g} s", value <= SECONDS, least=round(min(ours), 4), cpu_seconds=round(cpu, 4),
    )  # fmt: skip


async def _took(session: aiohttp.ClientSession, path: str) -> float:
    """Seconds until the first byte of an answer."""
    started = time.monotonic()
    async with session.get(path) as answer:
        await answer.content.readany()
        took = time.monotonic() - started
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"GET {path}: found {answer.status}, expected 200")
    return took
