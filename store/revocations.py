"""Revocations: all earlier signatures over a manifest become invalid, for any key (R32).

One lies at ``signatures/revoked/<family>/<name>/<digest>``, where the collection of manifests does not reach
it. It has the form of a signature by nobody, which older versions read and take for false: revoked is what is
signed over its digest for its owner and begins before its ``ends``. It must outlive each such signature:
what begins before ``ends`` starts pods until ``LONGEST`` seconds after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from store import codec, operations
from store.entry import Entry, RawEntry
from store.errors import InputInvalid, RecordInvalid
from store.keys import Keys
from store.named import sifted
from store.operations import Operation
from store.ports import KeyReader, Mode
from store.signatures import (
    EARLY,
    LONGEST,
    MOST_BYTES,
    Signature,
    Statement,
    covers,
    fits,
    valid_digest,
    valid_owner,
)

MOST = 5000
"""How many revocations a node keeps; with more it starts nothing that must be signed, for the first time."""


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """What nobody may start any more by an earlier signature. ``by`` and ``reason`` are for people."""

    statement: Statement
    key: str = ""
    signature: str = ""
    by: str = ""
    reason: str = ""

    def over(self, now: float) -> bool:
        """Whether no signature that it revokes could start anything any more."""
        return now > self.statement.ends + LONGEST + EARLY


@dataclass(frozen=True, slots=True)
class Revoked:
    """What is revoked: by digest and owner, the time before which signatures must not begin."""

    before: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def covers(self, said: Statement) -> bool:
        """Whether a statement is revoked."""
        return said.begins < self.before.get((said.digest, said.owner), 0)

    def owners(self, digest: str) -> list[str]:
        """The owners for which signatures over a manifest were revoked."""
        return [owner for sha, owner in self.before if sha == digest]

    def concerns(self, digest: str, owner: str) -> bool:
        """Whether signatures over a manifest for this owner were revoked."""
        return any(covers(each, owner) for each in self.owners(digest))


NOTHING = Revoked()


def decode(keys: Keys, entry: Entry) -> Revocation:
    """One revocation from its entry.

    Raises:
        RecordInvalid: it does not decode, or its key is not that of its content.
    """
    fits(entry)
    found = codec.decode(Revocation, entry.value, entry.key)
    said = found.statement
    try:
        own = keys.revocation(valid_digest(said.digest), valid_owner(said.owner))
    except InputInvalid as error:
        raise RecordInvalid(f"{entry.key}: statement: {error.message}", key=entry.key) from error
    if own != entry.key:
        raise RecordInvalid(f"{entry.key}: found the content of {own}", key=entry.key)
    return found


def put(keys: Keys, revocation: Revocation) -> Operation:
    """Store a revocation in the place of an earlier one of this owner and manifest."""
    said = revocation.statement
    return operations.put(keys.revocation(said.digest, said.owner), codec.encode(revocation))


def revoked(found: Iterable[Revocation | Signature]) -> Revoked:
    """What is revoked by some records, which have the form of signatures."""
    return Revoked({(each.statement.digest, each.statement.owner): each.statement.ends for each in found})


def of_page(keys: Keys, items: Iterable[RawEntry]) -> list[Revocation]:
    """The revocations that decode; ``farmctl doctor`` names the others."""
    return sifted(items, partial(decode, keys))[0]


async def stored(client: KeyReader, keys: Keys, mode: Mode = "consistent") -> list[Revocation]:
    """All revocations of the cluster."""
    return of_page(keys, (await client.list(keys.revocations, mode=mode, most=MOST_BYTES)).items)
