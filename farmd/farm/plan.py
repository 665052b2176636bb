"""What a farm claims, releases and hands over: pure (R7, R9, R10, R11).

A farm takes free items that prefer it at once. It takes other free items only after they stayed free for its
patience; this holds whatever other farms have seen. A farm that held more than its share for as long hands
items to the settled members that should hold them, in bounded batches. The member that should hold an item
depends on members and items alone, so an item never moves back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from farmd import kinds

# The values of the claim engine: items of work, members, the input and the plan of a round of claiming.


class Item(msgspec.Struct, frozen=True, gc=False):
    """One item of work: its record's ModifyIndex, labels and the features that it needs (R11).

    ``broken`` says why its record does not decode. One farm still owns such an item and reports it, but does
    not touch it (R10).
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
    ``max_transfers`` how many pods of the whole fleet may move at once. ``follow`` are the prefixes of
    Consul's keys outside of the cluster that the farm reads for owners that follow them (R41).
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
    follow: tuple[str, ...] = ()
    drain: float = 0.0

    @property
    def knows(self) -> tuple[str, ...]:
        """The features that this farm announces: those of its version, and those that an operator named."""
        return (*kinds.features(), *self.features)

    def selector_of(self, kind: str) -> str:
        """The selector for the items of a kind; empty: this farm takes all."""
        return self.selector if kinds.selectable(kind) else ""


HAND_OVER_BATCH = 20
# A surplus of a twentieth moves nothing, because items come and go.
SLACK = 20


def decide(situation: Situation) -> ClaimPlan:
    """Plan one round of claiming."""
    release = [item for item in situation.mine if item not in situation.claimable]
    if situation.draining:
        return ClaimPlan([], release, _give_all(situation), None)
    take, wake_at = _take(situation)
    surplus = _surplus(situation)
    if surplus <= 0:
        return ClaimPlan(take, release, {}, wake_at)
    due = (situation.now if situation.above_since is None else situation.above_since) + situation.patience
    if due > situation.now:
        return ClaimPlan(take, release, {}, due if wake_at is None else min(due, wake_at), above=True)
    return ClaimPlan(take, release, _give(situation, surplus), wake_at, above=True)


def _take(situation: Situation) -> tuple[list[str], float | None]:
    take, later = [], []
    for item in situation.claimable:
        if item in situation.held or item in situation.mine:
            continue
        due = situation.not_before.get(item, 0.0)
        owner = situation.preferred.get(item, "")
        if owner not in ("", situation.me):
            due = max(due, situation.free_since.get(item, situation.now) + situation.patience)
        if due <= situation.now:
            take.append(item)
        else:
            later.append(due)
    take.sort(key=lambda item: (situation.preferred.get(item) != situation.me, item))
    return take, min(later, default=None)


def _surplus(situation: Situation) -> int:
    """How many items to hand over: none for a small surplus, but all of it once the farm has begun."""
    share = sum(owner == situation.me for owner in situation.targets.values())
    surplus = sum(item in situation.claimable for item in situation.mine) - share
    return surplus if surplus > (share // SLACK if situation.above_since is None else 0) else 0


def _give(situation: Situation, surplus: int) -> dict[str, list[str]]:
    """Items to hand over to the settled members that should hold them.

    The member that came last is served first, because it has most room; an older member might have to pass
    the items on.
    """
    receivers = _receivers(situation)
    offers = [
        (-receivers[owner].since, item, owner)
        for item in situation.mine
        if (owner := situation.targets.get(item, "")) in receivers and item in situation.claimable
    ]
    batches = _Batches()
    for _, item, owner in sorted(offers):
        if surplus <= 0:
            break
        surplus -= batches.add(item, owner)
    return batches.of


def _give_all(situation: Situation) -> dict[str, list[str]]:
    """Everything that another member may have, one batch for each receiver and round."""
    receivers = _receivers(situation)
    batches = _Batches()
    for position, item in enumerate(sorted(set(situation.mine) & situation.claimable.keys())):
        able = _able(receivers, situation.claimable[item].needs)
        if not able:
            continue
        owner = situation.targets.get(item, "")
        batches.add(item, owner if owner in able else able[position % len(able)])
    return batches.of


def _receivers(situation: Situation) -> dict[str, Peer]:
    """Members that items may be handed to."""
    return {
        peer.id: peer
        for peer in situation.peers.values()
        if peer.settled and not peer.draining and peer.id != situation.me
    }


def _able(receivers: Mapping[str, Peer], needs: Iterable[str]) -> list[str]:
    return sorted(name for name, peer in receivers.items() if peer.features.issuperset(needs))


class _Batches:
    """Items to hand over, by receiver."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}

    def add(self, item: str, receiver: str) -> bool:
        """Add an item to its receiver's batch; whether there was room for it."""
        batch = self.of.setdefault(receiver, [])
        if len(batch) >= HAND_OVER_BATCH:
            return False
        batch.append(item)
        return True
