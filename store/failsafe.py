"""The freeze of a kind of work: ``failsafe/<kind>`` (R18, R19)."""

from __future__ import annotations

import msgspec

from store import codec, operations
from store.entry import Entry, Stored
from store.errors import RecordInvalid
from store.keys import Keys, is_sentinel
from store.operations import Operation
from store.ports import KeyReader
from store.times import Time

ILLEGIBLE = "failsafe: the record of the freeze does not decode"
"""The evidence of a freeze whose record does not decode; it freezes, and people acknowledge this text."""


class Acknowledgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's acknowledgement of one evidence; ``until`` is its expiry (seconds since the epoch)."""

    evidence: str
    by: str
    until: Time
    reason: str = ""


class Failsafe(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why removals are frozen. ``evidence`` is a stable text that an acknowledgement must name."""

    evidence: str
    detail: str = ""
    by: str = ""
    since: Time = 0.0
    acknowledgement: Acknowledgement | None = None


def frozen(record: Failsafe | None, now: float) -> bool:
    """Whether the record freezes its kind: it exists, and no acknowledgement of its evidence is valid."""
    if record is None:
        return False
    word = record.acknowledgement
    return word is None or not acknowledged(record) or word.until <= now


def acknowledged(record: Failsafe) -> bool:
    """Whether a person acknowledged this very evidence, now or earlier."""
    return record.acknowledgement is not None and record.acknowledgement.evidence == record.evidence


class FailsafeStore:
    """Reads freezes and builds the operation of a person's acknowledgement."""

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def get(self, kind: str) -> Stored[Failsafe] | None:
        """The freeze of one kind of work; None without a freeze."""
        entry = await self._client.read(self._keys.failsafe(kind))
        return None if entry is None else _legible(entry)

    async def list(self) -> dict[str, Stored[Failsafe]]:
        """All freezes by kind."""
        page = await self._client.list(self._keys.failsafe(""))
        return {
            self._keys.last_part(raw.key): _legible(Entry.of(raw))
            for raw in page.items
            if not is_sentinel(raw.key)
        }

    def acknowledge(self, stored: Stored[Failsafe], word: Acknowledgement) -> Operation:
        """Add an acknowledgement if the freeze has not changed since it was read."""
        record = msgspec.structs.replace(stored.record, acknowledgement=word)
        value = codec.rewrite(record, stored.raw) if stored.raw else codec.encode(record)
        return operations.cas(stored.key, value, stored.index, flags=stored.flags)


def _legible(entry: Entry) -> Stored[Failsafe]:
    """A freeze from its entry. One that does not decode has the evidence ``ILLEGIBLE``."""
    try:
        return codec.stored(Failsafe, entry)
    except RecordInvalid as error:
        record = Failsafe(evidence=ILLEGIBLE, detail=error.message)
        return Stored(entry.key, record, entry.modify_index, b"", entry.flags, entry.create_index)
