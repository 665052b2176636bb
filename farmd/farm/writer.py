"""The only way in which workers write: fenced, and applied to the caches (R2, R12, R23a).

Every transaction carries the claim's fence and the checks that its plan rests on. This module decides once
what a refusal means: the claim is lost, or somebody else was faster. From sending a transaction until its
commit is confirmed the writer is ``unsettled``: the worker then reads again before it plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from farmd.farm.errors import ClaimLost
from store import codec, operations
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import TransactionRejected
from store.locks import Claim
from store.operations import Operation
from store.ports import Clock
from store.sessions import Session
from store.transaction import Group, Result, pack, submit

T = TypeVar("T")


class Copy(Protocol):
    """What this process knows of some records, and learns of its own commits (R23a)."""

    def wrote(self, key: str, record: Any, index: int, raw: bytes, /) -> None:
        """The record was written, and the commit has this index."""

    def removed(self, key: str, index: int, /) -> None:
        """The record was deleted."""

    def notify(self, keys: set[str], /) -> None:
        """Wake those who wait for changes of these records."""


@dataclass(frozen=True, slots=True)
class Write:
    """A new version of one record, compared with the version that it was planned from.

    ``record`` None deletes it; ``index`` 0: it does not exist yet. ``raw`` is the old value, whose unknown
    fields are kept. ``tree``, if given, gets the new record after the commit.
    """

    key: str
    record: msgspec.Struct | None
    index: int
    raw: bytes = b""
    flags: int = 0
    tree: Copy | None = None

    @classmethod
    def over(
        cls,
        key: str,
        record: msgspec.Struct | None,
        standing: Stored[Any] | None,
        tree: Copy | None = None,
    ) -> Write:
        """A record that replaces the existing version, or is new."""
        if standing is None:
            return cls(key, record, 0, tree=tree)
        return cls(key, record, standing.index, standing.raw, standing.flags, tree)

    def value(self) -> bytes:
        """The new value; empty where the record is deleted."""
        if self.record is None:
            return b""
        return codec.rewrite(self.record, self.raw) if self.raw else codec.encode(self.record)

    def operations(self) -> list[Operation]:
        """The operations that compare and write."""
        if self.record is None:
            return deletion(self.key, self.index)
        return [operations.cas(self.key, self.value(), self.index, flags=self.flags)]

    def apply(self, index: int) -> None:
        """Apply the commit at that index to the cache; the caller calls ``notify`` (R23a)."""
        if self.tree is None:
            return
        if self.record is None:
            self.tree.removed(self.key, index)
        else:
            self.tree.wrote(self.key, self.record, index, self.value())


def deletion(key: str, index: int) -> list[Operation]:
    """Delete a key at that index.

    ``delete-cas`` alone also succeeds where the key is gone. A transaction that arrives twice, or late, would
    then write its audit record twice.
    """
    return [operations.check_index(key, index), operations.delete(key)]


class Writer:
    """Writes for one item under one claim."""

    __slots__ = ("_session", "claim", "client", "unsettled")

    def __init__(self, claim: Claim, session: Session, client: ConsulClient) -> None:
        self.claim = claim
        self._session = session
        self.client = client
        self.unsettled = False

    async def commit(self, *writes: Write | Operation) -> int:
        """One transaction: the fence, then checks and writes in this order; the index of the commit.

        Raises:
            ClaimLost: the lock is no longer this claim's.
            SessionSuspended: the session may have expired; nothing was sent.
            AccessDenied: Consul's ACL refuses the write.
            TransactionRejected: somebody else was faster; nothing was written.
            StoreError: whether it was written is unknown.
        """
        sent = self.claim.fence()
        for write in writes:
            sent += write.operations() if isinstance(write, Write) else [write]
        self._session.require()
        self.unsettled = True
        try:
            entries = await self.client.transaction(sent)
        except TransactionRejected as error:
            if self.claim.refused(error):
                raise ClaimLost(str(error)) from error
            raise
        self.unsettled = False
        index = max((entry.modify_index for entry in entries), default=0)
        indexes = {entry.key: entry.modify_index for entry in entries}
        for write in writes:
            if isinstance(write, Write):
                # An unchanged key keeps its index; a deletion has the commit's.
                write.apply(indexes.get(write.key, index))
        for write in writes:
            if isinstance(write, Write) and write.tree is not None:
                write.tree.notify({write.key})
        return index

    async def submit(
        self,
        groups: Iterable[Group[T]],
        checks: Sequence[Operation],
        *,
        clock: Clock,
        trailer: Callable[[list[Group[T]]], list[Operation]],
        trailer_bytes: Callable[[Group[T]], int],
        committed: Callable[[Result[T]], None],
    ) -> list[Result[T]]:
        """Submit groups in full transactions, several in flight (``store.transaction``); the outcome of each.

        The caller applies the commits to the caches. The writer stays unsettled until the caller has read
        again what was refused, and clears the flag.

        Raises:
            ClaimLost, SessionSuspended, AccessDenied: as ``commit``; what was committed before counts.
        """
        fence = [*self.claim.fence(), *checks]
        most = self.client.most_operations
        batches = pack(groups, fence=fence, trailer=trailer, trailer_bytes=trailer_bytes, max_operations=most)
        self.unsettled = True
        may_write = self._session.require
        results = await submit(self.client, batches, clock=clock, may_write=may_write, committed=committed)
        for result in results:
            if result.rejected is not None and self.claim.refused(result.rejected):
                raise ClaimLost(str(result.rejected))
        return results

    async def attempt(self, *writes: Write | Operation) -> int | None:
        """Like ``commit``, but returns None if somebody else was faster."""
        try:
            return await self.commit(*writes)
        except TransactionRejected:
            self.unsettled = False
            return None
