"""Reads everything that the doctor checks, once: side by side, and parts before what they belong to.

So a pod whose controller is created meanwhile never looks like an orphan. If an owner is deleted meanwhile,
its parts may look like orphans; such findings count only if a second survey has them, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from store import codec, families, manifests
from store.entry import Entry
from store.errors import RecordInvalid
from store.families import Family
from store.keys import Keys, is_sentinel
from store.manifests import Manifest
from store.named import Owner
from store.peers import Peers
from store.ports import Clock
from store.reality import Intent, Reality
from store.registration import Schema, sentinel_value
from store.several import several

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

T = TypeVar("T")

BELONGINGS = (("locks", "names", "status", "work", "reality"), ("intent", "reserved"), ("pods",))
"""What belongs to owners or to one another, in steps: the trees of a step are read side by side."""

Step = Callable[[str], None]
"""Gets what is read next, for people who wait."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Entries by family and key, sentinels among them; ``audit_hours`` newest last.

    ``manifests`` by digest, None where the body is not what the digest names. ``peers`` are the digests of
    documents of peers (R29).
    """

    keys: Keys
    now: float
    cluster: Entry | None
    schema: Entry | None
    trees: Mapping[str, Mapping[str, Entry]]
    manifests: Mapping[str, Manifest | None]
    peers: frozenset[str]
    audit_hours: tuple[str, ...]

    def records(self, family: str) -> Iterator[Entry]:
        """The records of a family, without sentinels."""
        return (entry for key, entry in self.trees[family].items() if not is_sentinel(key))

    def well_formed(self, family: str) -> Iterator[Entry]:
        """The records whose keys are possible in the family."""
        return (entry for entry in self.records(family) if families.well_formed(self.keys, family, entry.key))

    def decoded(self, family: str, kind: type[T]) -> Iterator[tuple[Entry, T]]:
        """The records that decode."""
        for entry in self.well_formed(family):
            try:
                yield entry, codec.decode(kind, entry.value, entry.key)
            except RecordInvalid:
                continue  # ``records.py`` reports it

    def ids(self, family: str) -> frozenset[str]:
        """The last parts of a family's keys: names of nodes, ids of controllers."""
        return frozenset(self.keys.last_part(entry.key) for entry in self.well_formed(family))

    def sentinel(self, key: str) -> str:
        """What is wrong with a sentinel: ``missing``, ``foreign``, or empty (R20).

        A family that the cluster's farms never knew has no sentinel, and lacks none.
        """
        family = key[len(self.keys.prefix) :].split("/", 1)[0]
        entry = self.trees[family].get(key)
        if entry is None:
            return "" if family in self._unheard() else "missing"
        ours = self.cluster is not None and entry.value == self._sentinel_value()
        return "" if ours else "foreign"

    def _unheard(self) -> frozenset[str]:
        """The younger families whose sentinels no farm of this cluster has created yet."""
        if self.schema is None:
            return frozenset()
        try:
            known = codec.decode(Schema, self.schema.value, self.schema.key).families
        except RecordInvalid:
            return frozenset()
        return frozenset(family.name for family in families.younger()).difference(known)

    def _sentinel_value(self) -> bytes:
        return sentinel_value(self.cluster_id) if self.cluster_id else b""

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty where there is none that decodes."""
        if self.cluster is None:
            return ""
        try:
            return codec.decode(str, self.cluster.value, self.cluster.key)
        except RecordInvalid:
            return ""

    def owners(self) -> Iterator[tuple[Family[Any], Entry, Owner]]:
        """The records that own pods and decode."""
        for family in families.owners():
            assert family.record is not None
            for entry, record in self.decoded(family.name, family.record):
                yield family, entry, record

    def named(self) -> Iterator[tuple[Entry, Any]]:
        """The records that people name and that decode."""
        for family in families.FAMILIES.values():
            if family.named and family.record is not None:
                yield from self.decoded(family.name, family.record)

    def proven(self, *trees: str) -> bool:
        """Whether absence from these trees, and from the owners of pods, is proven."""
        names = (*(family.name for family in families.owners()), *trees)
        return not any(self.sentinel(self.keys.sentinel(self.keys.tree(name))) for name in names)

    def untouched(self, family: str) -> bool:
        """Whether nothing shows that records of the family exist or existed.

        A wiped tree leaves names, statuses, work and locks behind, or pods without an owner.
        """
        left = any(
            entry.key.startswith(f"{self.keys.tree(beside)}{family}/")
            for beside in ("names", "status", "work", "locks")
            for entry in self.records(beside)
        )
        owners = {self.keys.pod_parts(entry.key)[0] for entry in self.well_formed("pods")}
        owners |= {intent.owner for _, intent in self.decoded("intent", Intent)}
        owners |= {reality.owner for _, reality in self.decoded("reality", Reality) if reality.owner}
        orphans = any(not self.owned(owner) for owner in owners)
        return not left and not orphans and not any(self.records(family))

    def short(self, key: str) -> str:
        """A key without the cluster's prefix."""
        return key.removeprefix(self.keys.prefix)

    def owner_keys(self, owner: str) -> tuple[str, ...]:
        """The keys that a record of this owner could have."""
        known = (family.name for family in families.owners())
        unknown = sorted(self.trees.keys() - families.FAMILIES.keys())
        return tuple(self.keys.record(name, owner) for name in (*known, *unknown))

    def owned(self, owner: str) -> bool:
        """Whether that owner exists, in any family, or owns pods during something that goes on."""
        there = any(key in self.trees[self.short(key).partition("/")[0]] for key in self.owner_keys(owner))
        return there or any(self._acts(family.name, owner) for family in families.actors())

    def _acts(self, family: str, item: str) -> bool:
        entry = self.trees[family].get(self.keys.record(family, item))
        if entry is None:
            return False
        try:
            during = families.acting(family, families.decode(self.keys, family, entry))
        except RecordInvalid:
            return True  # nobody can tell
        kind, _, of = during.partition("/")
        if not kind:
            return False
        doubtful = bool(self.sentinel(self.keys.sentinel(self.keys.tree(kind))))
        return doubtful or self.keys.record(kind, of) in self.trees[kind]


async def _readable(client: ConsulClient, keys: Keys, trees: Mapping[str, Mapping[str, Entry]]) -> None:
    """Distinguish an unreadable tree from an empty one, because Consul lists both alike.

    Raises:
        AccessDenied: the token may not read one of the trees.
    """
    empty = [keys.sentinel(keys.tree(family)) for family, found in trees.items() if not found]
    await several(client.read, empty)


def _body(keys: Keys, entry: Entry) -> Manifest | Peers | None:
    if manifests.digest(entry.value) != keys.last_part(entry.key):
        return None
    with contextlib.suppress(RecordInvalid):
        return codec.decode(Manifest, entry.value, entry.key)
    with contextlib.suppress(RecordInvalid):
        return codec.decode(Peers, entry.value, entry.key)
    return None


def bare(name: str) -> bool:
    """Whether a tree holds no records that anything rests on: of such a tree only the sentinel is read."""
    family = families.FAMILIES.get(name)
    belongings = {each for step in BELONGINGS for each in step}
    return family is not None and family.record is None and name not in belongings


def _steps() -> Iterator[tuple[str, ...]]:
    """Every tree of records that this version knows: belongings first, owners last."""
    parts = {name for step in BELONGINGS for name in step}
    whole = [
        each
        for each in families.FAMILIES.values()
        if (each.record is not None or each.proven) and each.name not in parts
    ]
    yield from BELONGINGS
    for owning in (False, True):
        yield tuple(family.name for family in whole if family.owns_pods is owning)


async def survey(client: ConsulClient, keys: Keys, clock: Clock, step: Step = lambda _: None) -> Survey:
    """Read everything.

    Raises:
        StoreError: Consul cannot be reached. AccessDenied: the token may not read all of it.
    """

    async def tree(name: str) -> dict[str, Entry]:
        page = await client.list(keys.sentinel(keys.tree(name)) if bare(name) else keys.tree(name))
        return {raw.key: Entry.of(raw) for raw in page.items}

    trees: dict[str, dict[str, Entry]] = {}

    async def read(names: Sequence[str]) -> None:
        step(", ".join(names))
        trees.update(zip(names, await several(tree, names), strict=True))

    async def below(prefix: str) -> Sequence[str]:
        return (await client.keys(prefix, separator="/")).items

    for names in _steps():
        await read(names)
    await _readable(client, keys, trees)
    # Records of later versions may own pods, too.
    found, hours = await several(below, (keys.prefix, keys.tree("audit")))
    if unknown := families.unknown(keys, found):
        await read(unknown)
    step("manifests")
    page = await client.list(keys.manifest(""))
    bodies = {
        keys.last_part(raw.key): _body(keys, Entry.of(raw)) for raw in page.items if not is_sentinel(raw.key)
    }
    cluster, schema = await several(client.read, (keys.cluster, keys.schema))
    return Survey(
        keys=keys,
        now=clock.now(),
        cluster=cluster,
        schema=schema,
        trees=trees,
        manifests={sha: body for sha, body in bodies.items() if not isinstance(body, Peers)},
        peers=frozenset(sha for sha, body in bodies.items() if isinstance(body, Peers)),
        audit_hours=tuple(sorted(key.split("/")[-2] for key in hours if key.endswith("/"))),
    )
