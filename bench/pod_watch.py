"""A bare watch of the pods of a namespace: when which event came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from bench.kubernetes import Call, Setting
from farmd.kubernetes.objects import PODS

WITHIN = 60.0


class Seen:
    """When a watch of the pods of a namespace saw what: ``(type, name)`` of each event with its time."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str]] = []
        self.news = asyncio.Event()

    async def wait(self, kind: str, name: str, since: float) -> float:
        """When an event of that type of a pod came after a moment.

        Raises:
            RuntimeError: none came in time.
        """
        try:
            async with asyncio.timeout(WITHIN):
                while True:
                    self.news.clear()
                    for at, what, which in self.events:
                        if at > since and (what, which) == (kind, name):
                            return at
                    await self.news.wait()
        except TimeoutError as error:
            raise RuntimeError(f"{kind} of pod {name} was not seen within {WITHIN:g} s") from error


@asynccontextmanager
async def watched(world: Setting, namespace: str) -> AsyncIterator[Seen]:
    """A watch of the pods of a namespace from now on."""
    seen = Seen()
    version = (await world.call(Call("GET", PODS.path(namespace))))["metadata"]["resourceVersion"]
    url = f"{world.api.url}{PODS.path(namespace)}?watch=1&resourceVersion={version}"

    async def read() -> None:
        async with world.session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for event in map(json.loads, lines):
                    at = time.monotonic()
                    seen.events.append((at, event["type"], event["object"]["metadata"]["name"]))
                seen.news.set()

    reading = asyncio.create_task(read())
    try:
        yield seen
    finally:
        reading.cancel()
