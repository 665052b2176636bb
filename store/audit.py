"""The audit log: one record a transaction, written in that transaction (p2 ``pkg/audit``).

A record holds counts before and after, and the pods that changed. Keys sort by time within their
UTC hour, so pruning is one ``delete-tree`` an hour (R25).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from store import codec, operations
from store.entry import RawEntry
from store.errors import RecordInvalid
from store.keys import Keys
from store.ports import Clock, Ids, KeyReader
from store.times import Time

FEW = 500
"""Records that are decoded at once; more of them in a thread, so that nothing else waits for it."""
READS = 4
"""With how many reads the newest records of an hour with many are read."""


class Audit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One change: its actor, action, item and reason; pods are written ``<node>/<instance>``.

    ``before`` and ``after`` hold the fields that changed. Pods belong to the item ``id``; a pod of another
    owner is written ``<owner>/<node>/<instance>``, so that replay knows its owner (``checkpoint.py``). The
    lists are exact. Counts are exact too, except in a plan of several transactions: each of them counts as
    if those before it were committed, also if they were not.
    """

    at: Time
    actor: str
    action: str
    kind: str
    id: str
    name: str = ""
    reason: str = ""
    before: dict[str, int | str | bool] = {}
    after: dict[str, int | str | bool] = {}
    placed: list[str] = []
    removed: list[str] = []
    relabelled: list[str] = []
    manifest: str = ""


def utc_hour(at: float) -> str:
    """The UTC hour that holds a record of this time, ``2026-11-20T17``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H")


class AuditLogStore:
    """Builds audit operations with time-ordered keys. ``AuditReader`` reads them."""

    def __init__(self, keys: Keys, clock: Clock, ids: Ids) -> None:
        self._keys = keys
        self._clock = clock
        self._ids = ids

    def now(self) -> float:
        """The present time, for the field ``at`` of a record."""
        return self._clock.now()

    def operation(self, record: Audit) -> operations.Operation:
        """The operation that writes one record; it belongs into the transaction of the change."""
        hour = utc_hour(record.at)
        record_id = f"{int(record.at * 1000):011x}-{self._ids.new()[:8]}"
        return operations.create(self._keys.audit(hour, record_id), codec.encode(record))


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which audit records to read; an empty field matches all records. ``item`` is an id or a name,
    ``action`` may be without its noun, ``text`` are words in lower case that all must occur.

    ``since`` and ``until`` are seconds since the epoch; hours outside of them are not read.
    """

    kind: str = ""
    item: str = ""
    actor: str = ""
    action: str = ""
    text: str = ""
    since: float = 0.0
    until: float = float("inf")

    def only_times(self) -> bool:
        """Whether all records of the time match."""
        return not (self.kind or self.item or self.actor or self.action or self.text)

    def fits(self, record: Audit) -> bool:
        """Whether a record matches."""
        return (
            self.kind in {"", record.kind}
            and self.item in {"", record.id, record.name}
            and self.actor in {"", record.actor}
            and self.action in {"", record.action, record.action.partition(".")[2]}
            and self.since <= record.at <= self.until
            and (not self.text or self._says(record))
        )

    def _says(self, record: Audit) -> bool:
        told = (record.actor, record.action, record.kind, record.id, record.name, record.reason)
        fields = (f"{name}={value}" for each in (record.before, record.after) for name, value in each.items())
        pods = (*record.placed, *record.removed, *record.relabelled, record.manifest)
        text = " ".join((*told, *fields, *pods)).lower()
        return all(word in text for word in self.text.split())


class AuditReader:
    """Reads the audit log, newest first, one hour at a time, and no more hours than needed."""

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.broken: list[RecordInvalid] = []
        """The errors of records that did not decode."""

    async def hours(self) -> tuple[str, ...]:
        """The hours that have records, newest first."""
        prefix = self._keys.tree("audit")
        page = await self._client.keys(prefix, separator="/")
        found = (key[len(prefix) :].strip("/") for key in page.items if key.endswith("/"))
        return tuple(sorted(found, reverse=True))

    async def read(self, wanted: Filter, limit: int) -> tuple[Audit, ...]:
        """At most ``limit`` records that match, newest first."""
        found: list[Audit] = []
        earliest = utc_hour(wanted.since) if wanted.since > 0 else ""
        latest = utc_hour(wanted.until) if wanted.until < float("inf") else "~"
        for hour in await self.hours():
            if len(found) >= limit or hour < earliest:
                break
            if hour <= latest:
                items = await self._candidates(hour, wanted, limit - len(found))
                if len(items) <= FEW:
                    found += self._matching(items, wanted)
                else:
                    found += await asyncio.to_thread(self._matching, items, wanted)
        return tuple(found[:limit])

    async def _candidates(self, hour: str, wanted: Filter, limit: int) -> Sequence[RawEntry]:
        """The records of an hour that can be among the newest that match."""
        prefixes = [self._keys.audit_hour(hour)]
        if wanted.only_times():
            # The keys of an hour with thousands of records cost a tenth of the records.
            until = f"{int(wanted.until * 1000):011x}" if wanted.until < float("inf") else "~"
            page = await self._client.keys(prefixes[0])
            keys = [key for key in page.items if self._keys.is_audit_record(key) and _time(key) <= until]
            if len(keys) > max(FEW, limit):
                prefixes = _prefixes(sorted(keys)[-limit:])
        pages = await asyncio.gather(*map(self._client.list, prefixes))
        return [raw for page in pages for raw in page.items]

    def _matching(self, items: Iterable[RawEntry], wanted: Filter) -> list[Audit]:
        """The records of an hour that match, newest first. An hour may have very many."""
        records = []
        if wanted.item and msgspec.json.encode(wanted.item) == (name := f'"{wanted.item}"'.encode()):
            # Most records are of other items; only those that name this one are worth decoding.
            items = [raw for raw in items if name in raw.decoded()]
        # Records are never rewritten, so the order of their creation is that of the commits.
        for raw in sorted(items, key=lambda raw: (raw.create_index, raw.key), reverse=True):
            if not self._keys.is_audit_record(raw.key):
                continue
            try:
                record = codec.decode(Audit, raw.decoded(), raw.key)
            except RecordInvalid as error:
                self.broken.append(error)
            else:
                if wanted.fits(record):
                    records.append(record)
        return records


def _time(key: str) -> str:
    """When a record was written, as its key tells it."""
    return key.rpartition("/")[2][:11]


def _prefixes(keys: Sequence[str]) -> list[str]:
    """The longest prefixes of one length that all these keys begin with."""
    for length in range(len(keys[0]), 0, -1):
        if len(found := {key[:length] for key in keys}) <= READS:
            return sorted(found)
    return [""]
