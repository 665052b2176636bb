"""Taking, finding, freeing and handing over the locks of one kind under one session (R3, R8, R9).

After a transaction without an answer, a lock may bear this session and have no worker. Until that is cleared
up, the locks are listed and compared: no lock of a live session may stay without a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import structlog

from farmd.farm.held import HeldLocks
from farmd.farm.model import Peer
from store.errors import NotRegistered, OutcomeUnknown, StoreError
from store.locks import Claim, Holder, Locker, batch_size
from store.operations import MAX_OPERATIONS
from store.ports import Clock, Ids, Recorder
from store.sessions import Session

log = structlog.get_logger()

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
        """Whether to list the locks and look for those that bear this session without a worker.

        Yes at once where such a lock is ``expected``; otherwise now and then, and only after other locks
        moved.
        """
        now = self.clock.mono()
        due = expected or now < self._doubt_until or now >= self._sweep_at
        return self._look or bool(self.held.moved and strangers and due)

    async def borne(self) -> list[Claim]:
        """All claims whose locks bear this session."""
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
