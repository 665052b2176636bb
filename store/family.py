"""What there is to say of a family of records; ``store.families`` says it of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from store.status import ItemStatus, Status

T = TypeVar("T")

Watched = Literal["no", "whole", "by id", "by name"]


def _whole(record: Any) -> Any:
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[T]):
    """One family of records; ``T`` is the type that a cache keeps of a record.

    Attributes:
        name: the first part of its keys.
        record: the type of its values; None: the values have several types, or are no records.
        parts: how many parts its keys have after the name.
        watched: whether processes watch the tree: as a whole, or in 16 shards by the first digit of an id
            or of a name's hash (R23). A watched tree has a sentinel, and each shard has one besides.
        own: a farm applies its own changes from their answers, so its cache may learn of others' later.
        pause: least seconds between two answers of one of its queries; 0: no pause.
        keep_raw: whether a cache keeps each value's bytes, for records that a farm rewrites.
        keep_unknown: whether it keeps only the bytes of values with fields that this version does not know,
            for such records of a large tree.
        compact: called once a cache; returns the function that makes a decoded record smaller.
        dated: adds to a compacted record the time when this process saw it, by its own clock.
        refers: its place in the order in which families are read for references to manifests (R24): a
            source comes before the records derived from it; 0: its records never refer to a manifest.
        younger: clusters may exist that were registered before this family was known; the first farm that
            knows it creates its sentinels (R20).
        owner_label: the label of pods that holds the id of their owner; empty: its records own no pods.
        claimed: it is a kind of work: ``locks/``, ``work/`` and ``status/`` hold keys of its items.
        outside: its items are objects of another system, so the store has no record of them.
        status: the type of the status of such an item.
        during: names the item, as ``<family>/<id>``, during which a record of it owns pods by itself, such
            as a service's hook; empty: it owns none.
        switches: the field of a record that holds the id of the service whose owners it changes; empty: none.
        leaves: the fields of a part of one of its records that others may change, too (R14).
        opens: a part of one of its records may itself name more such fields, in ``open``.
        named: people name its records: ``names/<family>/`` holds the id for each name.
    """

    name: str
    record: type[Any] | None = None
    parts: int = 1
    watched: Watched = "no"
    own: bool = False
    pause: float = 0.0
    keep_raw: bool = False
    keep_unknown: bool = False
    compact: Callable[[], Callable[[Any], T]] = lambda: _whole
    dated: Callable[[T, T | None, float], T] | None = None
    refers: int = 0
    younger: bool = False
    owner_label: str = ""
    claimed: bool = False
    outside: bool = False
    status: type[ItemStatus] = Status
    named: bool = False
    switches: str = ""
    leaves: frozenset[str] = frozenset()
    opens: bool = False
    during: Callable[[T], str] | None = None

    @property
    def sharded(self) -> bool:
        """Whether its tree is divided into shards once it has grown."""
        return self.watched in {"by id", "by name"}

    @property
    def owns_pods(self) -> bool:
        """Whether its records own pods, intents and realities."""
        return bool(self.owner_label)

    @property
    def proven(self) -> bool:
        """Whether its tree has a sentinel: an answer without it is no evidence of absence (R20)."""
        return self.watched != "no" or bool(self.refers)

    @property
    def cached(self) -> bool:
        """Whether a farm keeps a copy of its records."""
        return self.watched != "no" and self.record is not None
