"""One item of a kind of work, as its worker has it: its record, its status, its audit records.

A farm owns ten thousand items, so an item keeps no attribute that its claim implies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import structlog

from farmd import kinds
from farmd.farm.writer import Writer
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.model import Outcome
from farmd.work.status import STATUS_RETRY, StatusWriter
from store import operations
from store.audit import Audit
from store.cache import PrefixCache
from store.entry import Entry, Stored
from store.errors import RecordInvalid, StoreError
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session
from store.status import ItemStatus

log = structlog.get_logger()

Fields = dict[str, int | str | bool]
R = TypeVar("R")


class ClaimedItem:
    """An item while its claim lasts. ``wake`` is set by every change that concerns it."""

    __slots__ = ("claim", "index", "kind", "status", "wake", "writer")

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake) -> None:
        context = kind.context
        self.kind = kind
        self.claim = claim
        self.wake = wake
        self.writer = Writer(claim, session, context.client)
        known = kind.recollection.take(claim.item)
        self.status = StatusWriter(context, kind.status, known, self.writer, self)
        # ModifyIndex of the record that was read last, decoded or not; 0: there is none.
        self.index = 0

    @property
    def context(self) -> Context:
        """The farm's parts."""
        return self.kind.context

    @property
    def key(self) -> str:
        """The key of the item's record."""
        return self.context.keys.record(self.kind.name, self.claim.item)

    def labels(self) -> dict[str, str]:
        """The labels by which its alerts are routed: those of its record, and ``kind``, its kind of work."""
        item = self.kind.items().get(self.claim.item)
        return {**({} if item is None else item.labels), "kind": self.kind.name}

    def called(self) -> str:
        """The item's name, as people use it."""
        known = self.status.known
        return known.name if known is not None and known.name else self.claim.item

    def title(self) -> str:
        """The item as its alerts name it: ``rc/web``."""
        return kinds.title(self.kind.name, self.called())

    def path(self) -> str:
        """Where the page shows the item; empty: nowhere."""
        return kinds.path(self.kind.name, self.called())

    def stands(self) -> Sequence[Operation]:
        """Checks that the record is still the version that was read."""
        check = operations.check_index(self.key, self.index) if self.index else None
        return (check or operations.check_not_exists(self.key),)

    def obstructed(self, reason: str) -> ItemStatus:
        """The status of an item that cannot be worked on; how far it was stays known."""
        known = self.status.known
        if isinstance(known, self.kind.status) and known.underway:
            return msgspec.structs.replace(known, state="blocked", reason=reason)
        return self.kind.status(state="blocked", reason=reason)

    def stored(self, tree: PrefixCache[R]) -> Stored[R] | RecordInvalid | None:
        """The item's record in a cached tree, the error of one that does not decode, or None."""
        if (broken := tree.broken.get(self.key)) is not None:
            self.index = int(broken.fields.get("index", 0))
            return broken
        stored = tree.get(self.key)
        self.index = stored.index if stored is not None else 0
        return stored

    async def unreadable(self, error: RecordInvalid, what: str) -> Outcome:
        """Report that a record under the plan does not decode; nothing of the item is touched (R10)."""
        return Outcome("blocked", await self.block(error.message), f"{what} does not decode")

    async def gone(self) -> Outcome:
        """Resolve the item's alerts, because its record is gone."""
        await self.status.incidents.end_all()
        return Outcome("blocked", None, "the record is gone")

    def release(self) -> None:
        """Keep the item's alerts alive no more, because this worker ended."""
        self.status.incidents.release()

    def audit(
        self,
        action: str,
        reason: str,
        *,
        before: Fields | None = None,
        after: Fields | None = None,
        name: str = "",
    ) -> Operation:
        """The write of an audit record of this item; ``name`` is the name that people use, if not the id."""
        context, item = self.context, self.claim.item
        record = Audit(
            at=context.audit.now(),
            actor=context.actor,
            action=action,
            kind=self.kind.name,
            id=item,
            name=name or item,
            reason=reason,
            before=before or {},
            after=after or {},
        )
        return context.audit.operation(record)

    async def block(self, reason: str) -> float | None:
        """Report why the item cannot be worked on; returns when to try again if that was too early."""
        told = msgspec.structs.replace(
            self.obstructed(reason), farm=self.context.farm, since=self.context.clock.now()
        )
        try:
            return await self.status.write(told, self.index, self.stands())
        except StoreError as error:
            log.debug("status.not_written", **self.claim.named(), code=error.code)
            return STATUS_RETRY

    def look_at_status(self, entry: Entry | None) -> None:
        """Write the status again if somebody deleted or changed the stored one."""
        if self.status.differs(entry):
            self.wake.set()
