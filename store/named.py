"""Records with names: found by name or id, to read also by the beginning of an id.

``names/<family>/<name>`` holds the id of the record with that name. This key makes names unique, because
both keys are created together or not at all. A record that does not decode is reported beside the good
ones and does not fail a listing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec

from store import codec, operations
from store.entry import Entry, RawEntry, Stored
from store.errors import Ambiguous, NotFound, RecordInvalid
from store.keys import Keys, is_sentinel
from store.operations import Operation
from store.ports import KeyReader, Mode

# Reads all records below a prefix. One that does not decode hides none of the others.

L = TypeVar("L")


class Listing(msgspec.Struct, Generic[L], frozen=True):
    """The records that decode, and the errors of the others."""

    items: list[Stored[L]]
    broken: list[RecordInvalid]

    @property
    def named(self) -> dict[str, Stored[L]]:
        """The records by the last part of their keys, such as the name of a node."""
        return {stored.key.rpartition("/")[2]: stored for stored in self.items}

    @property
    def mistakes(self) -> list[str]:
        """One line for each record that does not decode."""
        return [error.message for error in self.broken]


async def records(client: KeyReader, prefix: str, kind: type[L], mode: Mode = "default") -> Listing[L]:
    """All records of one type below a prefix, without sentinels, in the order of their keys."""
    page = await client.list(prefix, mode=mode)
    return Listing(*sifted(page.items, partial(codec.stored, kind)))


def sifted(items: Iterable[RawEntry], decode: Callable[[Entry], L]) -> tuple[list[L], list[RecordInvalid]]:
    """What ``decode`` makes of each entry that is no sentinel, and the errors of those that it refuses."""
    found, broken = list[L](), list[RecordInvalid]()
    for raw in items:
        if not is_sentinel(raw.key):
            try:
                found.append(decode(Entry.of(raw)))
            except RecordInvalid as error:
                broken.append(error)
    return found, broken


_BEGINNING = re.compile(r"[0-9a-f]{8,}")
"""As much of an id as a person means by it; less is more likely a mistyped name."""


class Named(Protocol):
    """The fields of a record with a name."""

    @property
    def id(self) -> str:
        """Random hex: the last part of its key."""

    @property
    def name(self) -> str:
        """The name that people gave it; unique in its family."""


class Record(Named, Protocol):
    """A record that people create and delete. It may have ``disabled`` and ``managed_by``, too."""

    @property
    def deleting(self) -> bool:
        """Whether a delete is under way, which its worker finishes."""


class Owner(Named, Protocol):
    """The fields of a record that owns pods."""

    @property
    def manifests(self) -> tuple[str, ...]:
        """Digests of the manifests that its pods run; an owner of alike pods has one."""

    @property
    def manifest(self) -> str:
        """Digest of the manifest that its pods run."""

    @property
    def restart(self) -> int:
        """How many restarts of all its pods were asked for (R28)."""

    @property
    def pod_id(self) -> str:
        """The manifest's own id."""

    @property
    def labels(self) -> dict[str, str]:
        """Its own labels, by which farms select."""

    @property
    def needs(self) -> list[str]:
        """Features that a farm must know to claim it (R11)."""

    @property
    def pod_labels(self) -> dict[str, str]:
        """Labels that its pods get."""

    @property
    def node_selector(self) -> str:
        """Which nodes its pods may be placed on; empty: all."""

    @property
    def min_healthy_time(self) -> float:
        """Seconds that a pod must be healthy without a break before it is available (R22)."""

    @property
    def disabled(self) -> bool:
        """Whether its worker leaves its pods alone."""

    @property
    def deleting(self) -> bool:
        """Whether a cascading delete is under way."""

    @property
    def managed_by(self) -> str:
        """What alone changes its membership, as ``<family>/<id>``; empty: nothing does (R14)."""

    @property
    def taken(self) -> bool:
        """Whether its manager is the only writer of its pods."""

    @property
    def hands(self) -> int:
        """How often ``taken`` changed."""

    @property
    def count(self) -> int | None:
        """How many pods it asks for; None: one on every eligible node, so pods never move."""

    @property
    def stays(self) -> str:
        """Why its worker removes no pod from a node, as text for people; empty if it does."""


def stays(owner: Owner) -> str:
    """Why the worker of an owner removes no pod from a node, as text for people; empty if it does."""
    taken = f"taken by {owner.managed_by}" if owner.taken else ""
    return "disabled, so its pods stay" if owner.disabled else taken


T = TypeVar("T", bound=Named)


def decode_named(kind: type[T], keys: Keys, entry: Entry) -> Stored[T]:
    """One record from its entry.

    Raises:
        RecordInvalid: the record does not decode, or its id is not that of its key.
    """
    stored = codec.stored(kind, entry)
    if stored.record.id != keys.last_part(entry.key):
        raise RecordInvalid(
            f"{entry.key}: id: found {stored.record.id!r}, expected the last part of the key", key=entry.key
        )
    return stored


class NamedRecords(Generic[T]):
    """Reads one family and builds the operations that change it; ``noun`` is the word for people.

    Errors of the client pass through: ``StoreUnavailable``, ``AccessDenied``, ``UnexpectedAnswer``.
    """

    def __init__(self, client: KeyReader, keys: Keys, family: str, kind: type[T], noun: str) -> None:
        self._client = client
        self._keys = keys
        self.family = family
        self._kind = kind
        self._noun = noun

    async def get(self, record_id: str) -> Stored[T]:
        """One record by its whole id.

        Raises:
            NotFound: there is no such record.
            RecordInvalid: the record does not decode.
        """
        entry = await self._client.read(self._keys.record(self.family, record_id))
        if entry is None:
            raise self._missing(record_id)
        return decode_named(self._kind, self._keys, entry)

    async def named(self, name: str) -> tuple[Stored[T] | None, int]:
        """The record with a name, and the index of the name's key (0: the name is free).

        At the end of a rollout the name passes to the new record: if that happens between both reads, they
        are repeated.

        Raises:
            RecordInvalid: the name's key or the record does not decode.
        """
        gone = ""
        while (entry := await self._client.read(self._keys.name(self.family, name))) is not None:
            record_id = codec.decode(str, entry.value, entry.key)
            if record_id == gone:
                return None, entry.modify_index
            record = await self._client.read(self._keys.record(self.family, record_id))
            if record is not None:
                return decode_named(self._kind, self._keys, record), entry.modify_index
            gone = record_id
        return None, 0

    async def find(self, text: str) -> Stored[T]:
        """One record by its exact name or its whole id, so that a change never meets another record.

        Raises:
            NotFound: no record matches; the hint names the record whose id begins so.
            RecordInvalid: the record does not decode.
        """
        found, ids = await self._exact(text)
        if found is not None:
            return found
        hint = ""
        if len(ids) == 1:
            name = (await self.get(ids[0])).record.name
            hint = f"{text} is a prefix of the id of {self._noun}/{name}: use that name, or the whole id"
        raise self._missing(text, hint)

    async def look(self, text: str) -> Stored[T]:
        """One record to read: by its name, its id, or the first 8 or more digits of its id.

        Raises:
            NotFound: no record matches.
            Ambiguous: several ids begin so; ``fields["ids"]`` lists some.
            RecordInvalid: the record does not decode.
        """
        found, ids = await self._exact(text)
        if found is not None:
            return found
        if len(ids) == 1:
            return await self.get(ids[0])
        if ids:
            shown = ", ".join(ids[:5])
            raise Ambiguous(
                f"{self._noun} {text!r} fits {len(ids)} ids: {shown}", kind=self.family, ids=ids[:5]
            )
        raise self._missing(text)

    async def _exact(self, text: str) -> tuple[Stored[T] | None, list[str]]:
        """The record with that name or whole id, else the ids that begin so."""
        if not text or "/" in text or text in (".", ".."):  # Consul would look elsewhere
            return None, []
        stored, _ = await self.named(text)
        if stored is not None:
            return stored, []
        key = self._keys.record(self.family, text)
        entry = None if is_sentinel(key) else await self._client.read(key)
        if entry is not None:
            return decode_named(self._kind, self._keys, entry), []
        if not _BEGINNING.fullmatch(text):
            return None, []
        return None, [self._keys.last_part(found) for found in (await self._client.keys(key)).items]

    async def list(self) -> Listing[T]:
        """All records, sorted by name, and the errors of those that do not decode."""
        page = await self._client.list(self._keys.tree(self.family))
        found, broken = sifted(page.items, partial(decode_named, self._kind, self._keys))
        return Listing(sorted(found, key=lambda stored: (stored.record.name, stored.record.id)), broken)

    def create(self, record: T, *, name_index: int = 0, raw: bytes = b"") -> tuple[Operation, ...]:
        """Create the record and the key of its name; both operations belong into one transaction.

        ``name_index`` above 0 takes over a name whose record does not exist any more. ``raw`` is a record of
        which the new one keeps the fields that this version does not know.
        """
        assert isinstance(record, msgspec.Struct)
        value = codec.rewrite(record, raw) if raw else codec.encode(record)
        return (
            operations.create(self._keys.record(self.family, record.id), value),
            operations.cas(self._keys.name(self.family, record.name), codec.encode(record.id), name_index),
        )

    def replace(self, stored: Stored[T], record: T) -> Operation:
        """Replace a record if it has not changed since; fields that this version does not know are kept."""
        assert isinstance(record, msgspec.Struct)
        return operations.cas(stored.key, codec.rewrite(record, stored.raw), stored.index, flags=stored.flags)

    def delete(self, stored: Stored[T]) -> tuple[Operation, ...]:
        """Delete a record at its index with its name, status and work, and the sentinel of its pods.

        Safe only for a record that wants no pods, and if a listing *after* it was read shows no pods: a
        transaction that adds pods checks the index of a record that wants some (R12).
        """
        record = stored.record
        return (
            operations.check_index(stored.key, stored.index),
            operations.delete(stored.key),
            operations.delete(self._keys.name(self.family, record.name)),
            operations.delete(self._keys.status(self.family, record.id)),
            operations.delete(self._keys.work(self.family, record.id)),
            operations.delete(self._keys.sentinel(self._keys.pods(record.id))),
        )

    def _missing(self, text: str, hint: str = "") -> NotFound:
        told = {"hint": hint} if hint else {}
        return NotFound(f"{self._noun} {text!r} does not exist", kind=self.family, id=text, **told)
