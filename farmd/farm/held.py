"""Which items of one kind are held: a parked ``?keys`` query, where existence means held (R7, R23).

The query rests while a round claims, so that a farm's own locks do not wake it in a storm. What a farm
takes or is refused counts as held at once; a refusal is looked into by a timer, because the end of a
lock-delay wakes nobody (R5) and nobody polls ``acquire`` (R6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from store.consul.client import ConsulClient
from store.entry import Page
from store.keys import Keys
from store.ports import Clock, Rng
from store.watch import follow

log = structlog.get_logger()

PAUSE = 0.05
REFUSED_START = 0.1
REFUSED_LIMIT = 5.0


class HeldLocks:
    """The held items of one kind, as last seen; ``items`` is None while nothing is known of them.

    ``index`` is that of the answer; ``moved`` is set by every answer, for whoever clears it.
    """

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        kind: str,
        clock: Clock,
        rng: Rng,
        *,
        on_change: Callable[[], None],
        on_answer: Callable[[], None],
    ) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind
        self._clock = clock
        self._rng = rng
        self._on_change = on_change
        self._on_answer = on_answer
        self._prefix = keys.tree("locks")
        self._awake = asyncio.Event()
        self._awake.set()
        self._refusals = 0
        self._look_at: float | None = None
        self.items: set[str] | None = None
        self.index = 0
        self.moved = False

    async def run(self) -> None:
        """Follow the locks until cancelled."""

        async def query(index: int, wait: float) -> Page[str]:
            await self._awake.wait()
            return await self._client.keys(self._prefix, index=index, wait=wait)

        pages = follow(
            query,
            name=f"locks/{self._kind}",
            clock=self._clock,
            rng=self._rng,
            pause=PAUSE,
            on_answer=self._on_answer,
        )
        async for page in pages:
            self._see(page)
            self._on_change()

    def rest(self) -> None:
        """Start no new query until ``resume``."""
        self._awake.clear()

    def resume(self) -> None:
        """End of ``rest``."""
        self._awake.set()

    # -- what this farm does ---------------------------------------------------------------------
    def took(self, items: Iterable[str]) -> None:
        """These are held by now, whoever got them."""
        if self.items is not None:
            self.items |= set(items)

    def claimed(self) -> None:
        """A claim succeeded: a refusal is once more looked into soon."""
        self._refusals = 0

    def refused(self) -> None:
        """Some were refused: look again after a while, longer each time, unless an answer comes first."""
        pause = min(REFUSED_START * 2**self._refusals, REFUSED_LIMIT)
        self._refusals += 1
        self._look_at = self._clock.mono() + pause * self._rng.uniform(0.75, 1.25)

    def due_in(self) -> float | None:
        """Seconds until ``refresh`` has something to do; None: nothing."""
        return None if self._look_at is None else max(0.0, self._look_at - self._clock.mono())

    async def refresh(self) -> None:
        """Look again if a refusal is due for it.

        Raises:
            StoreError: the locks could not be read.
        """
        if self._look_at is not None and self._clock.mono() >= self._look_at:
            self._see(await self._client.keys(self._prefix))

    def _see(self, page: Page[str]) -> None:
        self._look_at = None
        if self._keys.sentinel(self._prefix) not in page.items:
            log.warning("locks.doubt", kind=self._kind, reason="the answer lacks the sentinel")
            self.items = None
            return
        parts = map(self._keys.lock_parts, page.items)
        self.items = {item for kind, item, mutation in parts if kind == self._kind and not mutation}
        self.index = page.index
        self.moved = True
