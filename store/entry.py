"""The entries of Consul's key-value API; every reader uses these types.

``RawEntry.value`` keeps the base64 text undecoded, so that a watch can skip entries whose index did
not change (R23: decode only what changed).
"""

from __future__ import annotations

import binascii
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class RawEntry(msgspec.Struct, rename="pascal", frozen=True, gc=False):
    """One pair as Consul sends it; ``value`` is the raw JSON of ``Value``: base64 text or null."""

    key: str
    modify_index: int
    create_index: int = 0
    lock_index: int = 0
    flags: int = 0
    session: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")

    def decoded(self) -> bytes:
        """The value's bytes; empty for null."""
        # Base64 text has other lengths than ``null``, with its quotes; these are skipped.
        return b"" if len(self.value) == len(b"null") else binascii.a2b_base64(self.value)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One pair with its value decoded. ``session`` is empty if no session holds the key."""

    key: str
    value: bytes
    modify_index: int
    create_index: int = 0
    lock_index: int = 0
    flags: int = 0
    session: str = ""

    @classmethod
    def of(cls, raw: RawEntry) -> Entry:
        """Decode one raw pair."""
        return cls(
            raw.key, raw.decoded(), raw.modify_index, raw.create_index, raw.lock_index, raw.flags, raw.session
        )


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One answer: the index to continue a watch from (0 when the server sent none), and the items.

    ``unchanged``: a wait ended with the index that it began with. ``items`` is empty then, because the items
    are the same as in the former answer with this index and are not decoded again.
    """

    index: int
    items: list[T]
    unchanged: bool = False


class Stored(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A decoded record with the data for a later compare-and-set.

    ``raw`` is the value as it was read, with the fields that this version does not know.
    """

    key: str
    record: T
    index: int
    raw: bytes
    flags: int = 0
    create_index: int = 0
