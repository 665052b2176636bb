"""Bare clients: the time that Consul itself needs for the transactions that a row is compared with."""

from __future__ import annotations

import asyncio
import time

from farmd.farm.locking import IN_FLIGHT
from store import operations
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import batch_size
from store.sessions import Session
from tests.fleet import CLOCK


async def bare_locks(client: ConsulClient, number: int, count: int) -> float:
    """Seconds for ``count`` locks in full transactions, with as many in flight as a farm has."""
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
