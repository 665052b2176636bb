"""Taking, finding, freeing and handing over the locks of one kind under one session (R3, R8, R9).

After a transaction without an answer, a lock may bear this session and have no worker. Until that is cleared
up, the locks are listed and compared: no lock of a live session may stay without a worker.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import structlog

from farmd.farm.plan import Peer
from farmd.observe.progress import Loop
from farmd.runtime.wake import wait
from store.consul.client import ConsulClient
from store.entry import Page
from store.errors import NotRegistered, OutcomeUnknown, StoreError
from store.keys import Keys
from store.locks import Claim, Holder, Locker, batch_size
from store.operations import MAX_OPERATIONS
from store.ports import Clock, Ids, Recorder, Rng
from store.sessions import Session
from store.watch import Leadership, follow

# Which items are held: one parked ``?keys`` query for each farm, where a key means a held lock (R7, R23).
#
# All kinds of work share the query, because a process may park only a few. The query pauses while a kind
# claims, so that the farm's own locks do not wake it in a storm. The pause is short, so that a kind that
# hangs does not hide freed locks from the others. An item that this farm takes, or is refused, counts as
# held at once. After a refusal a timer reads the locks again, because the end of a lock-delay wakes no
# watch (R5) and a farm does not poll ``acquire`` (R6).

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
        """Update the locks of this kind from an answer."""
        self._look_at = None
        self.items = items
        self.index = index
        self.moved = True


IN_FLIGHT = 8
SWEEP_SECONDS = 30.0
# This is longer than any transaction can last: until then a lock may appear whose answer was lost.
DOUBT_SECONDS = 60.0


@dataclass(eq=False)
class Locks:
    """The locks that one session holds of one kind."""

    kind: str
    session: Session
    farm: str
    locker: Locker
    held: HeldLocks
    clock: Clock
    ids: Ids
    recorder: Recorder
    _look: bool = field(default=False, init=False)
    _failed: bool = field(default=False, init=False)
    _doubt_until: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        # A new session bears no lock that it was not given, and such a lock is expected.
        self._sweep_at = self.clock.mono() + SWEEP_SECONDS

    async def take(self, items: Sequence[str], schema: int) -> list[Claim]:
        """Take the items that are free, in full batches, several in flight; a failed batch leaves a doubt.

        Raises:
            NotRegistered: the schema changed.
        """
        size = batch_size()
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(batch: Sequence[str]) -> tuple[list[Claim], list[str]]:
            async with gate:
                self.session.require()
                holder = Holder("farm", self.farm, self.ids.new())
                claims, refused = await self.locker.take(batch, self.session.id, holder, schema)
                self.held.took(batch)
                return claims, refused

        results = await asyncio.gather(*(one(batch) for batch in batches), return_exceptions=True)
        answers = [result for result in results if not isinstance(result, BaseException)]
        claims = [claim for claims, _ in answers for claim in claims]
        self._note(len(claims), sum(len(refused) for _, refused in answers))
        errors = [result for result in results if isinstance(result, BaseException)]
        self._failed = bool(errors)
        if errors:
            self.doubt()
        fatal = [
            each for each in errors if isinstance(each, NotRegistered) or not isinstance(each, StoreError)
        ]
        if fatal:
            try:
                raise fatal[0]
            finally:
                del results, errors, fatal  # its traceback refers to this frame
        if errors:
            log.warning("claims.batches_failed", kind=self.kind, failed=len(errors), error=str(errors[0]))
        return claims

    def _note(self, claims: int, refused: int) -> None:
        if claims:
            self.held.claimed()
        if refused:
            self.held.refused()
        self.recorder.count("farmd_lock_events_total", claims, event="claimed")
        self.recorder.count("farmd_lock_events_total", refused, event="rejected")

    def in_doubt(self) -> bool:
        """Whether a batch of the last ``take`` was not answered."""
        return self._failed

    def doubt(self) -> None:
        """Note that a lock may bear this session and have no worker, now or after a late transaction."""
        self._look = True
        self._doubt_until = self.clock.mono() + DOUBT_SECONDS

    def look_again(self) -> None:
        """List the locks soon, because locks of this session changed without its doing."""
        self._look = True

    def worth_looking(self, strangers: Set[str], expected: bool) -> bool:
        """Whether to list the locks and look for those that this session holds without a worker.

        Yes at once if such a lock is ``expected``; otherwise from time to time, and only after other locks
        have changed.
        """
        now = self.clock.mono()
        due = expected or now < self._doubt_until or now >= self._sweep_at
        return self._look or bool(self.held.moved and strangers and due)

    async def borne(self) -> list[Claim]:
        """All claims whose locks this session holds."""
        # Cleared before the request: the answer may lack what changes while it is on its way.
        self._look = self.held.moved = False
        try:
            claims = await self.locker.borne_by(self.session.id)
        except StoreError:
            self._look = True
            raise
        self._sweep_at = self.clock.mono() + SWEEP_SECONDS
        return claims

    async def free(self, claims: Sequence[Claim]) -> None:
        """Free the locks of claims whose workers have ended, in full batches, several in flight."""
        batches = [claims[start : start + MAX_OPERATIONS] for start in range(0, len(claims), MAX_OPERATIONS)]
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(batch: Sequence[Claim]) -> None:
            async with gate:
                await self.locker.free(batch)
            self.recorder.count("farmd_lock_events_total", len(batch), event="released")

        ended = await asyncio.gather(*(one(batch) for batch in batches), return_exceptions=True)
        errors, ended = [error for error in ended if error is not None], []
        if errors:
            self.doubt()
            raise errors.pop(0)  # not by a name: it would refer to itself

    async def hand_over(self, claims: Sequence[Claim], receiver: Peer) -> None:
        """Move locks to a peer in one transaction, which fails if the peer's session is dead (R9).

        Raises:
            OutcomeUnknown: they are ours or the receiver's.
            StoreError: they are still ours.
        """
        try:
            holder = Holder("farm", receiver.id, self.ids.new())
            await self.locker.hand_over(claims, receiver.session, holder)
        except OutcomeUnknown:
            self.doubt()
            raise
        self.recorder.count("farmd_lock_events_total", len(claims), event="handed_over")
