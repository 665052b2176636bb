"""What a farm claims, releases and hands over: pure (R7, R9, R10, R11).

A farm takes free items that prefer it at once. It takes other free items only after they stayed free for its
patience; this holds whatever other farms have seen. A farm that held more than its share for as long hands
items to the settled members that should hold them, in bounded batches. The member that should hold an item
depends on members and items alone, so an item never moves back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farmd.farm.model import ClaimPlan, Peer, Situation

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
