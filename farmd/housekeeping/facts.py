"""The facts of house-keeping: references to manifests, proven by answers with sentinels (R20, R24)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

from farmd.cache.caches import Caches
from farmd.config.sections import HousekeepingSection
from farmd.work.model import Blocked
from store import codec, families
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.entry import RawEntry
from store.errors import NotRegistered
from store.failsafe import Failsafe, frozen
from store.keys import Keys, is_sentinel
from store.ports import Clock
from store.registration import sentinel_value

# The values of house-keeping: manifests and their condemnations, rounds.

# Longer than any transaction can last: requests end after 10 s, and Consul applies none much later.
PATIENCE_SECONDS = 120.0

DEFAULTS = HousekeepingSection()


@dataclass(frozen=True, slots=True)
class Body:
    """One stored value, named by a digest or its key; ``flags`` is when it was condemned (seconds since the
    epoch), or 0.
    """

    name: str
    index: int
    flags: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Sighting:
    """The index of a condemnation, and when this farm first saw it by its own monotonic clock."""

    index: int
    at: float


Seen = dict[str, Sighting]
"""The condemnations that a farm saw of one chore's values, by name."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The values to condemn, to absolve and to delete now."""

    condemn: tuple[Body, ...] = ()
    absolve: tuple[Body, ...] = ()
    collect: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """The end of a round; ``more``: it stopped at its bound, and the next should come soon."""

    more: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The facts of a due chore; ``frozen`` is the evidence of a freeze, or empty."""

    frozen: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Whether to do a round now."""

    round: bool = False
    blocked: Blocked | None = None
    after: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.round


# Finds references to manifests, proven by answers with sentinels (R20, R24).
#
# A reference is a digest anywhere in a record: also in a field that only a newer version knows, in a family
# that this version does not know, and in a record that does not decode. Only families that are known to
# hold none are left out. Families are read in the order in which references spread (a controller's record
# comes before its pods, a pod before its intent): a reference that is copied is held until the copy exists,
# so none is missed between two reads.

SLICE = 500
_DIGEST = re.compile(rb"[0-9a-f]{64}")


def known(caches: Caches) -> set[str]:
    """Digests to which the caches know references; they may be a little old, and only save reads."""
    trees: list[PrefixCache[Any]] = [caches.pods, caches.intent]
    found = {stored.record.manifest for tree in trees for stored in tree.entries.values()}
    found |= {stored.record.peers for stored in caches.intent.entries.values()}
    owners = (stored.record for tree in caches.owners() for stored in tree.entries.values())
    return found.union(*(owner.manifests for owner in owners))


async def referenced(
    client: ConsulClient, keys: Keys, cluster: str, clock: Clock, wanted: Set[str]
) -> frozenset[str]:
    """Those of the digests that any record refers to.

    Raises:
        NotRegistered: an answer lacks its sentinel or has another cluster's id: it proves nothing.
    """
    digests = {sha.encode() for sha in wanted}
    found: set[bytes] = set()
    for family in await _families(client, keys):
        for prefix in _prefixes(family, keys):
            page = await client.list(prefix, mode="consistent")
            known = families.FAMILIES.get(family)
            if known is not None and known.proven:
                _prove(keys.sentinel(prefix), page.items, cluster)
            for position, raw in enumerate(page.items):
                if position % SLICE == SLICE - 1:
                    await clock.sleep(0)
                found |= digests.intersection(_DIGEST.findall(raw.decoded()))
    return frozenset(digest.decode() for digest in found)


async def freeze(client: ConsulClient, keys: Keys, cluster: str, clock: Clock) -> str:
    """The evidence of a freeze of any kind of work; empty: there is none.

    Raises:
        NotRegistered: the freezes cannot be proven to be absent.
        RecordInvalid: one does not decode.
    """
    prefix = keys.tree("failsafe")
    page = await client.list(prefix, mode="consistent")
    _prove(keys.sentinel(prefix), page.items, cluster)
    for raw in page.items:
        if not is_sentinel(raw.key):
            record = codec.decode(Failsafe, raw.decoded(), raw.key)
            if frozen(record, clock.now()):
                return f"{keys.last_part(raw.key)}: {record.evidence}"
    return ""


async def _families(client: ConsulClient, keys: Keys) -> Iterable[str]:
    """Unknown families first, then the known ones in the order in which references spread."""
    page = await client.keys(keys.prefix, separator="/", mode="consistent")
    return (*families.unknown(keys, page.items), *(family.name for family in families.spreading()))


def _prefixes(family: str, keys: Keys) -> Iterator[str]:
    known = families.FAMILIES.get(family)
    if known is not None and known.sharded:
        yield from families.shards(keys, family)
    else:
        yield keys.tree(family)


def _prove(sentinel: str, items: Iterable[RawEntry], cluster: str) -> None:
    for raw in items:
        if raw.key == sentinel:
            if raw.decoded() == sentinel_value(cluster):
                return
            raise NotRegistered(f"{sentinel}: has another cluster's id", key=sentinel)
    raise NotRegistered(f"{sentinel}: missing, so the answer proves nothing", key=sentinel)
