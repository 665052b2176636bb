"""Which items are held: one parked ``?keys`` query for each farm, where a key means a held lock (R7, R23).

All kinds of work share the query, because a process may park only a few. The query pauses while a kind
claims, so that the farm's own locks do not wake it in a storm. The pause is short, so that a kind that hangs
does not hide freed locks from the others. An item that this farm takes, or is refused, counts as held at
once. After a refusal a timer reads the locks again, because the end of a lock-delay wakes no watch (R5) and a
farm does not poll ``acquire`` (R6).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import structlog

from farmd.observe.progress import Loop
from farmd.runtime.wake import wait
from store.consul.client import ConsulClient
from store.entry import Page
from store.errors import NotRegistered
from store.keys import Keys
from store.ports import Clock, Rng
from store.watch import Leadership, follow

log = structlog.get_logger()

PAUSE = 0.05
LONGEST_REST = 1.0
REFUSED_START = 0.1
REFUSED_LIMIT = 5.0
REFUSALS_COUNTED = 10  # by then the limit is reached


class LockTree:
    """All locks of the fleet, as read last; ``of`` gives each kind its own part."""

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        clock: Clock,
        rng: Rng,
        beat: Loop,
        on_restore: Callable[[], None] = lambda: None,
        leadership: Leadership | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._rng = rng
        self._beat = beat
        self._on_restore = on_restore
        self._leadership = leadership
        self._prefix = keys.tree("locks")
        self._kinds: dict[str, HeldLocks] = {}
        self._index = 0
        self._claiming = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def of(self, kind: str, on_change: Callable[[], None]) -> HeldLocks:
        """The held items of one kind; ``on_change`` is called after each answer of the parked query."""
        held = self._kinds[kind] = HeldLocks(self, self._clock, self._rng, on_change)
        return held

    async def run(self) -> None:
        """Follow the locks until cancelled."""

        async def query(index: int, seconds: float) -> Page[str]:
            await self.idle()
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
            # An outage does not stall the loop: the query keeps asking, and a restart would not help.
            on_error=lambda _: self._beat.beat(),
            on_restore=self._on_restore,
            leadership=self._leadership,
            proven=self._proves,
        )
        async for page in pages:
            self._see(page)
            del page  # frees the keys of all locks during the next wait
            for held in self._kinds.values():
                held.on_change()

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Inside this context a kind claims; ``idle`` waits for its end."""
        self._claiming += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._claiming -= 1
            if not self._claiming:
                self._idle.set()

    async def idle(self) -> None:
        """Return when no kind claims, after ``LONGEST_REST`` at the latest."""
        await wait(self._idle, self._clock, LONGEST_REST)

    async def look(self) -> None:
        """Read the locks now and pass the answer to every kind.

        Raises:
            StoreError: they could not be read.
        """
        asked = self._index
        page = await self._client.keys(self._prefix, mode="consistent")
        if not asked <= page.index < self._index:  # else a newer answer has overtaken it
            self._see(page)

    def _proves(self, page: Page[str]) -> bool:
        return self._keys.sentinel(self._prefix) in page.items

    def _see(self, page: Page[str]) -> None:
        self._index = page.index
        if not self._proves(page):
            log.warning("locks.doubt", reason="the answer lacks the sentinel")
            for held in self._kinds.values():
                held.items = None
            return
        found: dict[str, set[str]] = {kind: set() for kind in self._kinds}
        start = len(self._prefix)
        for key in page.items:
            kind, _, item = key[start:].partition("/")
            if item and "/" not in item and kind in found:  # else a mutation lock, or a foreign key
                found[kind].add(sys.intern(item))
        for kind, held in self._kinds.items():
            held.seen(found[kind], page.index)


@dataclass(eq=False)
class HeldLocks:
    """The held items of one kind, as read last; ``items`` is None while the locks are unknown.

    ``index`` is the answer's. Every answer sets ``moved``, and the reader clears it: a hand-over changes no
    key. ``on_change`` is called after each answer of the parked query.
    """

    tree: LockTree
    clock: Clock
    rng: Rng
    on_change: Callable[[], None]
    _refusals: int = field(default=0, init=False)
    _look_at: float | None = field(default=None, init=False)
    items: set[str] | None = field(default=None, init=False)
    index: int = field(default=0, init=False)
    moved: bool = field(default=False, init=False)

    def claiming(self) -> AbstractContextManager[None]:
        """Inside this context this kind claims."""
        return self.tree.claiming()

    def known(self) -> frozenset[str]:
        """A copy of the items that are held now.

        An answer without the sentinel can come at every await; it does not prove that an item is free.

        Raises:
            NotRegistered: the last answer lacked the sentinel (R20).
        """
        if self.items is None:
            raise NotRegistered("locks: the answer lacks the sentinel")
        return frozenset(self.items)

    # -- what this farm does ---------------------------------------------------------------------
    def took(self, items: Iterable[str]) -> None:
        """Count these items as held, by whichever farm."""
        if self.items is not None:
            self.items |= set(items)

    def claimed(self) -> None:
        """Reset the pause after a refusal, because a claim succeeded."""
        self._refusals = 0

    def refused(self) -> None:
        """Read the locks again after a pause that doubles with each refusal, unless an answer comes first."""
        pause = min(REFUSED_START * 2**self._refusals, REFUSED_LIMIT)
        self._refusals = min(self._refusals + 1, REFUSALS_COUNTED)
        self._look_at = self.clock.mono() + pause * self.rng.uniform(0.75, 1.25)

    def due_in(self) -> float | None:
        """Seconds until ``refresh`` reads the locks; None: it has no reason to."""
        return None if self._look_at is None else max(0.0, self._look_at - self.clock.mono())

    async def refresh(self) -> None:
        """Read the locks if the pause after a refusal is over.

        Raises:
            StoreError: the locks could not be read.
        """
        if self._look_at is not None and self.clock.mono() >= self._look_at:
            await self.tree.look()

    def seen(self, items: set[str], index: int) -> None:
        """Take over what an answer says of this kind."""
        self._look_at = None
        self.items = items
        self.index = index
        self.moved = True
