"""What the claim engine reasons about: items of work, members, and a plan of claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farmd import kinds


@dataclass(frozen=True, slots=True)
class Item:
    """One item of work: its record's ModifyIndex, labels and the features that it needs (R11).

    ``broken`` says why its record does not decode; such an item is still owned, so that it is reported
    by one farm, and nothing of it is touched (R10).
    """

    id: str
    index: int
    labels: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    broken: str = ""

    def claimed_like(self, other: Item) -> bool:
        """Whether the same farms may claim it as another version of it."""
        return self.labels == other.labels and self.needs == other.needs


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the plan sees it: ``settled`` members may receive items; ``features`` are what it knows.

    ``since`` is when it was first seen, on the monotonic clock.
    """

    id: str
    session: str
    settled: bool
    draining: bool
    features: frozenset[str] = frozenset()
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one round of claiming decides from. Times are seconds, monotonic.

    ``held`` are items that somebody holds, ours included; ``mine`` those that this farm works on;
    ``claimable`` the items that this farm may take at all; ``preferred`` names each item's preferred member,
    ``targets`` the one whose it shall be for loads to be even; ``free_since`` tells since when an item was
    seen free; ``not_before`` until when it must rest after a crash; ``patience`` is this farm's jittered
    delay before it takes what others prefer, or hands over what is too much; ``above_since`` tells since
    when it has been above its share.
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
    """What to do now, in this order; ``wake_at`` is when to look again if nothing else happens.

    ``release`` are items that are no longer ours to work on, ``give`` those to hand over by receiver;
    ``above`` tells that this farm has more than its share.
    """

    take: list[str]
    release: list[str]
    give: Mapping[str, list[str]]
    wake_at: float | None
    above: bool = False


@dataclass(frozen=True, slots=True)
class FarmSettings:
    """What an operator can set. Times are seconds.

    ``settle`` is how long a farm waits for its peers before it claims, ``patience`` the middle of the
    jittered delay before it takes an item that another farm prefers, ``stable`` how long a peer must
    be present before items are handed to it. ``drain`` is how long a farm that stops may take to hand its
    items over; 0: it frees them all at once (R4). ``selector`` chooses among the items of selectable
    kinds; the others belong to all farms. ``lost_after`` is how long a node's agent may be absent (R21),
    ``max_transfers`` how many pods of the whole fleet may be on the move at once.
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

    def selector_of(self, kind: str) -> str:
        """The selector that this farm's items of a kind must match; empty: it takes all."""
        return self.selector if kinds.selectable(kind) else ""
