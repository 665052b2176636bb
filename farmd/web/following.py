"""What the page follows in the store while somebody looks, beside what the farm's caches hold.

A prefix is followed by one parked query, and only entries that changed are decoded, in slices. Half a minute
after the last look the query ends: while nobody looks the page costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from farmd.runtime import tasks
from store.cache import PAUSE_AN_ENTRY
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import RecordInvalid
from store.ports import Clock, Rng
from store.watch import follow

T = TypeVar("T")

LINGER_SECONDS = 30.0
PAUSE_SECONDS = 0.5
SLICE = 500


class Followed(Generic[T]):
    """The values below one prefix by their keys; what does not decode is left out, and the doctor tells it.

    ``changed`` gets the keys that were changed, added or removed.
    """

    def __init__(
        self,
        client: ConsulClient,
        prefix: str,
        decode: Callable[[RawEntry], T | None],
        clock: Clock,
        rng: Rng,
        changed: Callable[[set[str]], None],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._decode = decode
        self._clock = clock
        self._rng = rng
        self._changed = changed
        self._indexes: dict[str, int] = {}
        self.values: dict[str, T] = {}
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""

        async def query(index: int, wait: float) -> Page[RawEntry]:
            return await self._client.list(self._prefix, index=index, wait=wait)

        pages = follow(query, name=self._prefix, clock=self._clock, rng=self._rng, pause=PAUSE_SECONDS)
        try:
            async for page in pages:
                await self._accept(page)
                await self._clock.sleep(len(page.items) * PAUSE_AN_ENTRY)
        finally:
            self.ready.clear()

    async def _accept(self, page: Page[RawEntry]) -> None:
        news = [raw for raw in page.items if self._indexes.get(raw.key) != raw.modify_index]
        changed = self._indexes.keys() - {raw.key for raw in page.items}
        for key in changed:
            del self._indexes[key]
            self.values.pop(key, None)
        for start in range(0, len(news), SLICE):
            await self._clock.sleep(0)
            for raw in news[start : start + SLICE]:
                self._see(raw)
        self._changed(changed | {raw.key for raw in news})
        self.ready.set()

    def _see(self, raw: RawEntry) -> None:
        self._indexes[raw.key] = raw.modify_index
        try:
            value = self._decode(raw)
        except RecordInvalid:
            value = None
        if value is None:
            self.values.pop(raw.key, None)
        else:
            self.values[raw.key] = value


class WhileLooked:
    """Runs something from the first look until ``LINGER_SECONDS`` after the last one."""

    def __init__(self, run: Callable[[], Iterator[asyncio.Task[None]]], clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._looking = 0
        self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Somebody looks for the length of a ``with`` block."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="web-following")
        self._looking += 1
        try:
            yield
        finally:
            self._looking -= 1
            self._last = self._clock.mono()

    async def close(self) -> None:
        """End at once."""
        if self._task is not None:
            await tasks.end(self._task)

    async def _keep(self) -> None:
        await self._once()
        while self._looking:  # a look may begin while the tasks of the last one end
            await self._once()

    async def _once(self) -> None:
        running = list(self._run())
        self._last = self._clock.mono()
        try:
            while self._looking or self._clock.mono() - self._last < LINGER_SECONDS:
                await self._clock.sleep(LINGER_SECONDS / 3)
        finally:
            await tasks.end(*running)
