"""Writes the statuses of items: on change only, and at most once a second.

Statuses that an earlier owner wrote are read in bulk, so that a take-over of thousands of items writes
nothing. Every write carries the claim's fence and the version of the record that it describes, so no status
outlives its record. It also carries the version of the status that it replaces, so a write that is applied
late replaces no later one. No decision reads a status, except that nothing begins again that a status says
has begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from farmd.farm.alerts import Incidents, Labelled
from farmd.farm.writer import Write, Writer
from farmd.work.context import Context
from store import codec
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import RecordInvalid, TransactionRejected
from store.keys import Keys
from store.operations import Operation
from store.status import ItemStatus

log = structlog.get_logger()

STATUS_PAUSE = 1.0
STATUS_RETRY = 5.0
OWING_LIMIT = 60.0
NEVER = -math.inf
RECALL_ONE_BY_ONE = 16
# States in which an item cannot go on.
STUCK = frozenset({"blocked", "frozen"})


@dataclass(eq=False)
class Recollection:
    """The statuses of one kind that earlier owners wrote, read in bulk before workers start.

    A status that does not decode counts as blocked, so that the next one replaces it.
    """

    client: ConsulClient
    keys: Keys
    kind: str
    model: type[ItemStatus]
    _statuses: dict[str, ItemStatus] = field(default_factory=dict, init=False)

    async def read(self, items: Sequence[str]) -> None:
        """Read the statuses of these items, with one request when there are many.

        A status that was read earlier and not taken is dropped, because it may be gone by now.
        """
        self.forget(items)
        wanted = {self.keys.status(self.kind, item) for item in items}
        if len(wanted) <= RECALL_ONE_BY_ONE:
            found = [await self.client.read(key) for key in sorted(wanted)]
            entries = [entry for entry in found if entry is not None]
        else:
            page = await self.client.list(self.keys.status(self.kind, ""))
            entries = [Entry.of(raw) for raw in page.items if raw.key in wanted]
        for entry in entries:
            self._statuses[self.keys.last_part(entry.key)] = decoded(self.model, entry)

    def forget(self, items: Iterable[str]) -> None:
        """Drop the statuses of items that are gone."""
        for item in items:
            self._statuses.pop(item, None)

    def take(self, item: str) -> ItemStatus | None:
        """Return the status of an item, and drop it."""
        return self._statuses.pop(item, None)


def decoded(model: type[ItemStatus], entry: Entry) -> ItemStatus:
    """A stored status; one that does not decode counts as blocked."""
    try:
        return codec.decode(model, entry.value, entry.key)
    except RecordInvalid as error:
        log.warning("record.invalid", error=error.message)
        return model(state="blocked", reason="its status did not decode")


class StatusWriter:
    """Writes the status of one item under one claim; ``known`` is the stored one.

    ``incidents`` are the item's alerts; each status lists those that are open.
    """

    __slots__ = (
        "_context",
        "_index",
        "_model",
        "_owing",
        "_writer",
        "_written_at",
        "incidents",
        "known",
    )

    def __init__(
        self,
        context: Context,
        model: type[ItemStatus],
        known: ItemStatus | None,
        writer: Writer,
        about: Labelled,
    ) -> None:
        self._context = context
        self._model = model
        self._writer = writer
        self._written_at = NEVER
        self._index: int | None = None
        self._owing = STATUS_PAUSE
        self.known = known
        self.incidents = Incidents(context.alerter, () if known is None else known.alerts, about)

    @property
    def _key(self) -> str:
        return self._context.keys.status(self._writer.claim.kind, self._writer.claim.item)

    async def write(
        self, status: ItemStatus | None, record: int, checks: Sequence[Operation]
    ) -> float | None:
        """Write the status if it differs from the stored one, or delete it; returns the seconds to wait when
        it is too early.

        ``record`` is the ModifyIndex of the record that it describes; ``checks`` fail if that has changed.

        Raises:
            ClaimLost: the fence refused it.
        """
        if status is not None:
            status = msgspec.structs.replace(status, record=record, alerts=self.incidents.open())
            status = self._since(status)
        if same(self.known, status):
            return self._later()
        early = self._written_at + STATUS_PAUSE - self._context.clock.mono()
        if early > 0:
            return early
        async with self._context.status_writes:
            return await self._replace(status, checks)

    def _since(self, status: ItemStatus) -> ItemStatus:
        """The status with the time since when the item has been blocked; another reason does not restart
        that time.
        """
        known = self.known
        if known is None or status.state not in STUCK or known.state != status.state:
            return status
        return msgspec.structs.replace(status, since=known.since or status.since)

    async def _replace(self, status: ItemStatus | None, checks: Sequence[Operation]) -> float | None:
        standing = await self._standing()
        if same(self.known, status):
            return self._later()
        self._index = None  # until it is answered
        try:
            index = await self._writer.commit(*checks, Write(self._key, status, standing))
        except TransactionRejected:
            return STATUS_RETRY  # the record changed: its watch brings the next cycle before that
        self._index = 0 if status is None else index
        self.known, self._written_at = status, self._context.clock.mono()
        return self._later()

    def _later(self) -> float | None:
        """Seconds until the next report, so that an alert leaves the status once its end was delivered."""
        if not self.incidents.owed():
            self._owing = STATUS_PAUSE
            return None
        pause, self._owing = self._owing, min(self._owing * 2, OWING_LIMIT)
        return pause

    def differs(self, entry: Entry | None) -> bool:
        """Whether the status in the store differs from ``known``; if so, the next report writes it again."""
        found = None if entry is None else decoded(self._model, entry)
        if same(self.known, found):
            return False
        self.known, self._index = found, None
        return True

    async def _standing(self) -> int:
        """ModifyIndex of the stored status, 0 if there is none; read unless the last write returned it."""
        if self._index is None:
            entry = await self._writer.client.read(self._key)
            self.known = None if entry is None else decoded(self._model, entry)
            self._index = 0 if entry is None else entry.modify_index
        return self._index

    def stands(self, status: ItemStatus, record: int) -> bool:
        """Whether the stored status is equal and describes this record. A status of an older version names
        no record, and counts as well.
        """
        known = self.known
        if known is None or known.record not in (0, record):
            return False
        return same(known, msgspec.structs.replace(status, record=known.record, alerts=self.incidents.open()))


def same(left: Any, right: Any) -> bool:
    """Whether two statuses are equal; the farm and the time do not count."""
    if left is None or right is None:
        return left is right
    return bool(
        msgspec.structs.replace(left, since=0.0, farm="")
        == msgspec.structs.replace(right, since=0.0, farm="")
    )
