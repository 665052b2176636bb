"""Statuses of items as their owners write them: on change only, and at most once a second.

What an earlier owner wrote is recalled in bulk, so that a take-over of thousands of items writes nothing.
Every write carries the claim's fence, the version of the record that it speaks of (no status outlives its
record) and that of the status that it replaces: one without an answer, applied late, replaces no later one.
No decision ever reads a status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
import structlog

from alerting.alerter import Alerter
from farmd.farm.errors import ClaimLost
from farmd.farm.incidents import Incidents
from store import codec, operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import RecordInvalid, StoreError, TransactionRejected
from store.keys import Keys
from store.locks import Claim
from store.ports import Clock
from store.sessions import Session
from store.status import Status

log = structlog.get_logger()

STATUS_PAUSE = 1.0
STATUS_RETRY = 5.0
RECALL_ONE_BY_ONE = 16

S = TypeVar("S", bound=msgspec.Struct)


class Recollection(Generic[S]):
    """Statuses of one kind that earlier owners wrote, read in bulk before workers start.

    ``illegible`` is taken for one that does not decode, by a kind whose items may have none to replace it.
    """

    def __init__(
        self, client: ConsulClient, keys: Keys, kind: str, model: type[S], illegible: S | None = None
    ) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind
        self._model = model
        self._illegible = illegible
        self._statuses: dict[str, S] = {}

    async def read(self, items: Sequence[str]) -> None:
        """Read the statuses of these items, with one request when there are many.

        What an earlier reading found and nobody took is forgotten: the status may be gone by now.
        """
        self.forget(items)
        wanted = {self._keys.status(self._kind, item) for item in items}
        if len(wanted) <= RECALL_ONE_BY_ONE:
            found = [await self._client.read(key) for key in sorted(wanted)]
            entries = [entry for entry in found if entry is not None]
        else:
            page = await self._client.list(self._keys.status(self._kind, ""))
            entries = [Entry.of(raw) for raw in page.items if raw.key in wanted]
        for entry in entries:
            item = self._keys.last_part(entry.key)
            try:
                self._statuses[item] = codec.decode(self._model, entry.value, entry.key)
            except RecordInvalid as error:
                log.warning("record.invalid", error=error.message)
                if self._illegible is not None:
                    self._statuses[item] = self._illegible

    def forget(self, items: Iterable[str]) -> None:
        """These items are gone."""
        for item in items:
            self._statuses.pop(item, None)

    def take(self, item: str) -> S | None:
        """The status of an item, once."""
        return self._statuses.pop(item, None)


class StatusWriter:
    """Writes the status of one item under one claim; ``known`` is what stands in the store.

    ``incidents`` are the item's alerts; each status says which of them are open.
    """

    __slots__ = (
        "_began",
        "_claim",
        "_client",
        "_clock",
        "_index",
        "_keys",
        "_session",
        "_written_at",
        "incidents",
        "known",
    )

    def __init__(
        self,
        claim: Claim,
        session: Session,
        client: ConsulClient,
        keys: Keys,
        clock: Clock,
        known: Status | None,
        alerter: Alerter,
    ) -> None:
        self._claim = claim
        self._session = session
        self._client = client
        self._keys = keys
        self._clock = clock
        self._began = clock.mono()
        self._written_at = float("-inf")
        self._index: int | None = None
        self.known = known
        self.incidents = Incidents(alerter, () if known is None else known.alerts)

    async def write(self, status: Status, index: int) -> float | None:
        """Write the status if it says something else; the seconds to wait when it is too early for that.

        ``index`` is the ModifyIndex of the record that it speaks of.

        Raises:
            ClaimLost: the fence refused it.
        """
        status = msgspec.structs.replace(status, record=index, alerts=self.incidents.open())
        if same(self.known, status):
            return None
        early = self._written_at + STATUS_PAUSE - self._clock.mono()
        if early > 0:
            return early
        standing = await self._standing()
        if same(self.known, status):
            return None
        kind, item = self._claim.kind, self._claim.item
        key = self._keys.status(kind, item)
        record = operations.check_index(self._keys.record(kind, item), index)
        self._session.require()
        self._index = None  # until it is answered
        try:
            entries = await self._client.transaction(
                [*self._claim.fence(), record, operations.cas(key, codec.encode(status), standing)]
            )
        except TransactionRejected as error:
            if self._claim.refused(error):
                raise ClaimLost(str(error)) from error
            return STATUS_RETRY  # the record changed: its watch brings the next cycle before that
        self._index = max(entry.modify_index for entry in entries)
        self.known, self._written_at = status, self._clock.mono()
        return None

    def differs(self, entry: Entry | None) -> bool:
        """Whether something else stands in the store than this writer knows of; it is written anew then."""
        found = _decoded(entry)
        if same(self.known, found):
            return False
        self.known, self._index = found, None
        return True

    def younger_than(self, seconds: float) -> bool:
        """Whether this claim began less than so many seconds ago."""
        return self._clock.mono() - self._began < seconds

    def stands(self, status: Status, index: int) -> bool:
        """Whether the status in the store says ``converged`` in these words already, of this very record or,
        from an older version, of one that it does not name."""
        known = self.known
        if known is None or known.state != "converged" or known.record not in (0, index):
            return False
        return same(known, msgspec.structs.replace(status, record=known.record, alerts=self.incidents.open()))

    async def _standing(self) -> int:
        """ModifyIndex of the status in the store, 0 if there is none; read unless the last write told it."""
        if self._index is None:
            entry = await self._client.read(self._keys.status(self._claim.kind, self._claim.item))
            self.known = _decoded(entry)
            self._index = 0 if entry is None else entry.modify_index
        return self._index

    async def block(self, reason: str, index: int, placed: int, farm: str) -> float | None:
        """Say that the item cannot be worked on, and why; returns when to say it if that is not now."""
        desired = self.known.desired if self.known is not None else 0
        status = Status(
            state="blocked",
            desired=desired,
            placed=placed,
            reason=reason,
            farm=farm,
            since=self._clock.now(),
        )
        try:
            return await self.write(status, index)
        except StoreError as error:
            log.debug("status.not_written", kind=self._claim.kind, item=self._claim.item, code=error.code)
            return STATUS_RETRY


def _decoded(entry: Entry | None) -> Status | None:
    """A status; one that does not decode is as good as none, because its owner writes it anew."""
    try:
        return None if entry is None else codec.decode(Status, entry.value, entry.key)
    except RecordInvalid:
        return None


def same(left: S | None, right: S | None) -> bool:
    """Whether two statuses of a kind say the same; who says it since when does not count."""
    if left is None or right is None:
        return left is right
    return msgspec.structs.replace(left, since=0.0, farm="") == msgspec.structs.replace(
        right, since=0.0, farm=""
    )
