"""Records that people name: found by name, id or the beginning of an id; shared by all such families.

``names/<family>/<name>`` holds the id of the record that bears the name, which is what makes names
unique: both keys are created together or not at all. A record that does not decode is reported beside
the good ones and never poisons a listing.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from store import codec, operations
from store.entry import Entry, Stored
from store.errors import Ambiguous, NotFound, RecordInvalid
from store.keys import Keys, is_sentinel
from store.operations import Operation
from store.ports import KeyReader


class Named(Protocol):
    """What a record of such a family has."""

    @property
    def id(self) -> str:
        """Random hex: the last part of its key."""

    @property
    def name(self) -> str:
        """What people call it; unique in its family."""


class Owner(Named, Protocol):
    """What a record has that owns pods."""

    @property
    def manifest(self) -> str:
        """Digest of what its pods run."""

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
        """Where its pods may stand; empty: everywhere."""

    @property
    def disabled(self) -> bool:
        """Whether its worker leaves its pods alone."""

    @property
    def deleting(self) -> bool:
        """Whether a cascading delete is under way."""

    @property
    def count(self) -> int | None:
        """How many pods it asks for; None: as many as there are nodes, so no pod moves to another."""

    @property
    def stays(self) -> str:
        """Why its worker takes no pod off a node, in words for people; empty: it does."""


T = TypeVar("T", bound=Named)


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """All records that decode, by name, and what is wrong with the others."""

    items: list[Stored[T]]
    broken: list[RecordInvalid]


def decode_named(kind: type[T], keys: Keys, entry: Entry) -> Stored[T]:
    """One record from its entry.

    Raises:
        RecordInvalid: it does not decode, or bears another id than its key.
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
            NotFound: there is none.
            RecordInvalid: it does not decode.
        """
        entry = await self._client.read(self._keys.record(self.family, record_id))
        if entry is None:
            raise self._missing(record_id)
        return decode_named(self._kind, self._keys, entry)

    async def named(self, name: str) -> tuple[Stored[T] | None, int]:
        """The record that bears a name, and the index of the name's key (0: the name is free).

        Raises:
            RecordInvalid: the name's key or the record does not decode.
        """
        entry = await self._client.read(self._keys.name(self.family, name))
        if entry is None:
            return None, 0
        record_id = codec.decode(str, entry.value, entry.key)
        record = await self._client.read(self._keys.record(self.family, record_id))
        found = None if record is None else decode_named(self._kind, self._keys, record)
        return found, entry.modify_index

    async def find(self, text: str) -> Stored[T]:
        """One record by its name, its id, or the beginning of its id if that fits only one.

        Raises:
            NotFound: nothing fits.
            Ambiguous: the beginning fits several; ``fields["ids"]`` lists some.
            RecordInvalid: its record does not decode.
        """
        if text and "/" not in text:
            stored, _ = await self.named(text)
            if stored is not None:
                return stored
            page = await self._client.keys(self._keys.record(self.family, text))
            ids = [self._keys.last_part(key) for key in page.items if not is_sentinel(key)]
            if text in ids or len(ids) == 1:
                return await self.get(text if text in ids else ids[0])
            if ids:
                shown = ", ".join(ids[:5])
                raise Ambiguous(
                    f"{self._noun} {text!r} fits {len(ids)} ids: {shown}", kind=self.family, ids=ids[:5]
                )
        raise self._missing(text)

    async def list(self) -> Listing[T]:
        """All records, sorted by name; those that do not decode are reported, not raised."""
        page = await self._client.list(self._keys.tree(self.family))
        listing = Listing[T]([], [])
        for raw in page.items:
            if is_sentinel(raw.key):
                continue
            try:
                listing.items.append(decode_named(self._kind, self._keys, Entry.of(raw)))
            except RecordInvalid as error:
                listing.broken.append(error)
        listing.items.sort(key=lambda stored: (stored.record.name, stored.record.id))
        return listing

    async def names(self) -> tuple[str, ...]:
        """All names in use, for completion; reads no record."""
        prefix = self._keys.name(self.family, "")
        page = await self._client.keys(prefix)
        return tuple(key[len(prefix) :] for key in page.items)

    def create(self, record: T, *, name_index: int = 0) -> tuple[Operation, ...]:
        """Create the record and take its name; both belong into one transaction.

        ``name_index`` above 0 takes over a name whose record does not exist any more.
        """
        return (
            operations.create(self._keys.record(self.family, record.id), codec.encode(record)),
            operations.cas(self._keys.name(self.family, record.name), codec.encode(record.id), name_index),
        )

    def replace(self, stored: Stored[T], record: T) -> Operation:
        """Replace a record if nobody changed it since; fields that are not known here survive."""
        assert isinstance(record, msgspec.Struct)
        return operations.cas(stored.key, codec.rewrite(record, stored.raw), stored.index, flags=stored.flags)

    def delete(self, stored: Stored[T]) -> tuple[Operation, ...]:
        """Delete a record at its index with its name, status and work, and the sentinel of its pods.

        Safe only for a record that wants no pods, whose pods were listed, empty, *after* it was read:
        every transaction that adds pods carries the index of a record that wants some (R12).
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

    def _missing(self, text: str) -> NotFound:
        return NotFound(f"{self._noun} {text!r} does not exist", kind=self.family, id=text)
