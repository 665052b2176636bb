"""The one way in which a worker writes: fenced, audited, applied to the caches (R2, R12, R23a).

Every transaction carries the claim's fence and the checks that its plan rests on. What a refusal means is
said here once: the claim is gone, or somebody else was faster. From the moment when a transaction is sent
until it was answered with a commit the writer is ``unsettled``: the worker reads again before it plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from farmd.farm.errors import ClaimLost
from store import codec, operations
from store.audit import Audit, AuditLogStore
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.errors import TransactionRejected
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session


@dataclass(frozen=True, slots=True)
class Write:
    """One record as it shall be, compared with the version that it was planned from.

    ``record`` None deletes it; ``index`` 0: there is none yet. ``raw`` is the value that it replaces, so that
    fields of newer versions survive. ``tree`` is the cached tree that learns of the commit, if there is one.
    """

    key: str
    record: msgspec.Struct | None
    index: int
    raw: bytes = b""
    flags: int = 0
    tree: PrefixCache[Any] | None = None

    def value(self) -> bytes:
        """The new value; empty where the record is deleted."""
        if self.record is None:
            return b""
        return codec.rewrite(self.record, self.raw) if self.raw else codec.encode(self.record)

    def operations(self) -> list[Operation]:
        """Compare and write. A deletion checks the index by itself: ``delete-cas`` alone also succeeds where
        the key is gone, so that a transaction which arrives twice would be audited twice."""
        if self.record is None:
            return [operations.check_index(self.key, self.index), operations.delete(self.key)]
        return [operations.cas(self.key, self.value(), self.index, flags=self.flags)]

    def apply(self, index: int) -> None:
        """Let the cache know what was committed at that index; ``notify`` is the caller's."""
        if self.tree is None:
            return
        if self.record is None:
            self.tree.removed(self.key, index)
        else:
            self.tree.wrote(self.key, self.record, index, self.value())


class Writer:
    """Writes for one item under one claim."""

    __slots__ = ("_audit", "_claim", "_session", "client", "unsettled")

    def __init__(self, claim: Claim, session: Session, client: ConsulClient, audit: AuditLogStore) -> None:
        self._claim = claim
        self._session = session
        self.client = client
        self._audit = audit
        self.unsettled = False

    async def commit(
        self,
        *writes: Write | Operation,
        checks: Sequence[Operation] = (),
        audit: Audit | None = None,
    ) -> int:
        """One transaction: fence, checks, writes, audit; returns the index of the commit.

        Raises:
            ClaimLost: the lock is no longer this claim's.
            SessionSuspended: the session may have expired; nothing was sent.
            AccessDenied: Consul's ACL refuses the write.
            TransactionRejected: somebody else was faster; nothing was written.
            StoreError: nobody knows whether it was written.
        """
        sent = [*self._claim.fence(), *checks]
        for write in writes:
            sent += write.operations() if isinstance(write, Write) else [write]
        if audit is not None:
            sent.append(self._audit.operation(audit))
        self._session.require()
        self.unsettled = True
        try:
            entries = await self.client.transaction(sent)
        except TransactionRejected as error:
            if self._claim.refused(error):
                raise ClaimLost(str(error)) from error
            raise
        self.unsettled = False
        index = max((entry.modify_index for entry in entries), default=0)
        indexes = {entry.key: entry.modify_index for entry in entries}
        for write in writes:
            if isinstance(write, Write):
                # What was written as it stood keeps its index; a deletion has the commit's.
                write.apply(indexes.get(write.key, index))
        for write in writes:
            if isinstance(write, Write) and write.tree is not None:
                write.tree.notify({write.key})
        return index

    async def attempt(self, *writes: Write | Operation, audit: Audit | None = None) -> int | None:
        """``commit``, where a lost race needs no new plan: None if somebody else was faster."""
        try:
            return await self.commit(*writes, audit=audit)
        except TransactionRejected:
            self.unsettled = False
            return None
