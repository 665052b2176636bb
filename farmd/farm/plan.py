"""What a farm claims, releases and hands over: pure (R7, R9, R10, R11).

A farm takes free items that prefer it at once, and others' only after they stayed free for its patience.
It hands an item to the settled member that the item prefers, while it holds more than its fair share and
in bounded batches. Preference depends on the members alone, so an item never moves back and forth.
"""

from __future__ import annotations

from math import ceil

from farmd.farm.model import ClaimPlan, Situation

HAND_OVER_BATCH = 20


def decide(situation: Situation) -> ClaimPlan:
    """Plan one round of claiming."""
    release = [item for item in situation.mine if item not in situation.claimable]
    if situation.draining:
        return ClaimPlan([], release, _give_all(situation), None)
    take, wake_at = _take(situation)
    return ClaimPlan(take, release, _give(situation), wake_at)


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


def _give(situation: Situation) -> dict[str, list[str]]:
    """Items above the fair share, to the members that they prefer."""
    receivers = {peer.id for peer in situation.peers.values() if peer.settled and not peer.draining}
    farms = len(receivers | {situation.me})
    share = ceil(len(situation.claimable) / farms)
    surplus = len(situation.mine) - share
    give: dict[str, list[str]] = {}
    for item in sorted(situation.mine):
        if surplus <= 0:
            break
        owner = situation.preferred.get(item, "")
        if owner == situation.me or owner not in receivers or item not in situation.claimable:
            continue
        if len(give.setdefault(owner, [])) < HAND_OVER_BATCH:
            give[owner].append(item)
            surplus -= 1
    return {receiver: items for receiver, items in give.items() if items}


def _give_all(situation: Situation) -> dict[str, list[str]]:
    """A draining farm hands over everything, a batch a receiver at a time."""
    receivers = sorted(
        p.id for p in situation.peers.values() if p.settled and not p.draining and p.id != situation.me
    )
    give: dict[str, list[str]] = {}
    for position, item in enumerate(sorted(set(situation.mine) & set(situation.claimable))):
        if not receivers:
            break
        owner = situation.preferred.get(item, "")
        receiver = owner if owner in receivers else receivers[position % len(receivers)]
        if len(give.setdefault(receiver, [])) < HAND_OVER_BATCH:
            give[receiver].append(item)
    return give
