"""Reads all records below a prefix. One that does not decode hides none of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar

import msgspec

from store import codec
from store.entry import Entry, RawEntry, Stored
from store.errors import RecordInvalid
from store.keys import is_sentinel
from store.ports import KeyReader, Mode

T = TypeVar("T")


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """The records that decode, and the errors of the others."""

    items: list[Stored[T]]
    broken: list[RecordInvalid]

    @property
    def named(self) -> dict[str, Stored[T]]:
        """The records by the last part of their keys, such as the name of a node."""
        return {stored.key.rpartition("/")[2]: stored for stored in self.items}

    @property
    def mistakes(self) -> list[str]:
        """One line for each record that does not decode."""
        return [error.message for error in self.broken]


async def records(client: KeyReader, prefix: str, kind: type[T], mode: Mode = "default") -> Listing[T]:
    """All records of one type below a prefix, without sentinels, in the order of their keys."""
    page = await client.list(prefix, mode=mode)
    return Listing(*sifted(page.items, partial(codec.stored, kind)))


def sifted(items: Iterable[RawEntry], decode: Callable[[Entry], T]) -> tuple[list[T], list[RecordInvalid]]:
    """What ``decode`` makes of each entry that is no sentinel, and the errors of those that it refuses."""
    found, broken = list[T](), list[RecordInvalid]()
    for raw in items:
        if not is_sentinel(raw.key):
            try:
                found.append(decode(Entry.of(raw)))
            except RecordInvalid as error:
                broken.append(error)
    return found, broken
