"""Which items are held: one parked ``?keys`` query a farm, where existence means held (R7, R23).

All kinds of work share the query, because a process may park only so many. It rests while one of them
takes locks, so that a farm's own locks do not wake it in a storm; but never for long, so that no kind that
hangs keeps the others from seeing what came free. What a farm takes or is refused counts as held at once;
a refusal is looked into by a timer, because the end of a lock-delay wakes nobody (R5) and nobody polls
``acquire`` (R6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import structlog

from farmd.observe.progress import Loop
from farmd.runtime.wake import wait
from store.consul.client import ConsulClient
from store.entry import Page
from store.errors import NotRegistered
from store.keys import Keys
from store.ports import Clock, Rng
from store.watch import follow

log = structlog.get_logger()

PAUSE = 0.05
LONGEST_REST = 1.0
REFUSED_START = 0.1
REFUSED_LIMIT = 5.0
REFUSALS_COUNTED = 10  # by then the limit is reached


class LockTree:
    """All locks of the fleet, as last seen; ``of`` gives each kind its own."""

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        clock: Clock,
        rng: Rng,
        beat: Loop,
        on_restore: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._rng = rng
        self._beat = beat
        self._on_restore = on_restore
        self._prefix = keys.tree("locks")
        self._kinds: dict[str, HeldLocks] = {}
        self._index = 0
        self._taking = 0
        self._awake = asyncio.Event()
        self._awake.set()

    def of(self, kind: str, on_change: Callable[[], None]) -> HeldLocks:
        """The held items of one kind; ``on_change`` is called after each answer of the parked query."""
        held = self._kinds[kind] = HeldLocks(self, self._clock, self._rng, on_change)
        return held

    async def run(self) -> None:
        """Follow the locks until cancelled."""

        async def query(index: int, seconds: float) -> Page[str]:
            await wait(self._awake, self._clock, LONGEST_REST)
            if not index:
                return await self._client.keys(self._prefix, mode="consistent")
            return await self._client.keys(self._prefix, index=index, wait=seconds)

        pages = follow(
            query,
            name=self._prefix,
            clock=self._clock,
            rng=self._rng,
            pause=PAUSE,
            on_answer=self._beat.beat,
            # An outage is no stalled loop: the query goes on asking, and restarting helps nobody.
            on_error=lambda _: self._beat.beat(),
            on_restore=self._on_restore,
        )
        async for page in pages:
            self._see(page)
            for held in self._kinds.values():
                held.on_change()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Start no new query meanwhile, for a while at most."""
        self._taking += 1
        self._awake.clear()
        try:
            yield
        finally:
            self._taking -= 1
            if not self._taking:
                self._awake.set()

    async def look(self) -> None:
        """Read the locks now; every kind learns what is found.

        Raises:
            StoreError: they could not be read.
        """
        asked = self._index
        page = await self._client.keys(self._prefix, mode="consistent")
        if not asked <= page.index < self._index:  # else a newer answer has overtaken it
            self._see(page)

    def _see(self, page: Page[str]) -> None:
        self._index = page.index
        if self._keys.sentinel(self._prefix) not in page.items:
            log.warning("locks.doubt", reason="the answer lacks the sentinel")
            for held in self._kinds.values():
                held.items = None
            return
        found: dict[str, set[str]] = {kind: set() for kind in self._kinds}
        for kind, item, mutation in map(self._keys.lock_parts, page.items):
            if not mutation and kind in found:
                found[kind].add(item)
        for kind, held in self._kinds.items():
            held.seen(found[kind], page.index)


class HeldLocks:
    """The held items of one kind, as last seen; ``items`` is None while nothing is known of them.

    ``index`` is that of the answer; ``moved`` is set by every answer, for whoever clears it: a hand-over
    changes no key. ``on_change`` is called after each answer of the parked query.
    """

    def __init__(self, tree: LockTree, clock: Clock, rng: Rng, on_change: Callable[[], None]) -> None:
        self._tree = tree
        self.on_change = on_change
        self._clock = clock
        self._rng = rng
        self._refusals = 0
        self._look_at: float | None = None
        self.items: set[str] | None = None
        self.index = 0
        self.moved = False

    def resting(self) -> AbstractContextManager[None]:
        """While this kind takes locks."""
        return self._tree.resting()

    def known(self) -> frozenset[str]:
        """The items that are held at this moment; what is taken later is not among them.

        Sight of them may be lost at every await, which is no evidence that any is free.

        Raises:
            NotRegistered: the last answer lacked the sentinel (R20).
        """
        if self.items is None:
            raise NotRegistered("locks: the answer lacks the sentinel")
        return frozenset(self.items)

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
        self._refusals = min(self._refusals + 1, REFUSALS_COUNTED)
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
            await self._tree.look()

    def seen(self, items: set[str], index: int) -> None:
        """What an answer says of this kind."""
        self._look_at = None
        self.items = items
        self.index = index
        self.moved = True
