"""Writes objects into etcd as an API server would have written them, in a fiftieth of the time."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Iterable, Iterator

import aiohttp

A_TRANSACTION, IN_FLIGHT = 100, 4


async def written(url: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Write pairs of a key below ``/registry`` and an object as JSON."""
    left = iter(pairs)
    async with aiohttp.ClientSession(url) as session:
        await asyncio.gather(*(_put(session, left) for _ in range(IN_FLIGHT)))


async def _put(session: aiohttp.ClientSession, pairs: Iterator[tuple[str, str]]) -> None:
    while batch := list(itertools.islice(pairs, A_TRANSACTION)):
        puts = [{"requestPut": {"key": _encoded(key), "value": _encoded(value)}} for key, value in batch]
        async with session.post("/v3/kv/txn", json={"success": puts}) as answer:
            answer.raise_for_status()
            await answer.read()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
