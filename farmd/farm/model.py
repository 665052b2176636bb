"""The values of the claim engine: items of work, members, the input and the plan of a round of claiming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from farmd import kinds


class Item(msgspec.Struct, frozen=True, gc=False):
    """One item of work: its record's ModifyIndex, labels and the features that it needs (R11).

    ``broken`` says why its record does not decode. One farm still owns such an item and reports it, and
    nothing of it is touched (R10).
    """

    id: str
    index: int
    labels: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    broken: str = ""

    def claimed_like(self, other: Item) -> bool:
        """Whether the same farms may claim both versions of the item."""
        return self.labels == other.labels and self.needs == other.needs


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the plan sees it: a ``settled`` member may receive items; ``features`` are those that it
    knows.

    ``since`` is when it was first seen, on the monotonic clock; not before it has read everything.
    ``starting``: it has not, and no time alone changes that.
    """

    id: str
    session: str
    settled: bool
    draining: bool
    features: frozenset[str] = frozenset()
    since: float = 0.0
    starting: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of one round of claiming. Times are seconds on the monotonic clock.

    ``held`` are items that any farm holds, this one included; ``mine`` those that this farm works on;
    ``claimable`` those that it may take; ``preferred`` names each item's preferred member, ``targets`` the
    member that should hold it for even loads; ``free_since`` is when an item was first seen free;
    ``not_before`` the end of a backoff after a crash; ``patience`` this farm's jittered delay before it takes
    items that others prefer, or hands over its surplus; ``above_since`` is when it began to hold more than
    its share.
    """

    me: str
    claimable: Mapping[str, Item]
    held: frozenset[str] | set[str]
    mine: Mapping[str, int]
    peers: Mapping[str, Peer]
    preferred: Mapping[str, str]
    targets: Mapping[str, str]
    free_since: Mapping[str, float]
    not_before: Mapping[str, float]
    patience: float
    now: float
    above_since: float | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The actions of a round, in this order; ``wake_at`` is when to plan again if nothing happens before.

    ``release`` are items that this farm may not work on any more, ``give`` those to hand over, by receiver.
    ``above``: this farm holds more than its share.
    """

    take: list[str]
    release: list[str]
    give: Mapping[str, list[str]]
    wake_at: float | None
    above: bool = False


@dataclass(frozen=True, slots=True)
class FarmSettings:
    """The settings of a farm. Times are seconds.

    ``settle`` is how long a farm waits for its peers before it claims, ``patience`` the middle of the
    jittered delay before it takes an item that another farm prefers, ``stable`` how long a peer must be
    present before it receives items. ``drain`` is how long a stopping farm may take to hand over its items;
    with 0 it frees all locks at once (R4). ``selector`` chooses among the items of selectable kinds; other
    items belong to all farms. ``lost_after`` is how long a node's agent may be absent (R21),
    ``max_transfers`` how many pods of the whole fleet may move at once.
    """

    name: str
    ttl: float = 10.0
    settle: float = 0.5
    patience: float = 2.0
    stable: float = 5.0
    selector: str = ""
    features: tuple[str, ...] = ()
    lost_after: float = 60.0
    max_transfers: int = 50
    drain: float = 0.0

    @property
    def knows(self) -> tuple[str, ...]:
        """The features that this farm announces: those of its version, and those that an operator named."""
        return (*kinds.features(), *self.features)

    def selector_of(self, kind: str) -> str:
        """The selector for the items of a kind; empty: this farm takes all."""
        return self.selector if kinds.selectable(kind) else ""
