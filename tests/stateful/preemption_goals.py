"""What must come true of preemption once all is well again: who waits needs it, who can go has gone. Pure.

Written from what the documentation promises (``docs/scheduling.md``), not from how victims are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.nodes import Nomination, Reserved
from store.rcs import ReplicationController
from tests.stateful.sight import ROUNDING, Place, Sight


def unfinished(sight: Sight, on: bool) -> list[str]:
    """What should still change; ``on`` tells whether preemption is."""
    found = [line for rc in sight.rcs.values() for line in _waits(sight, rc, on)]
    return [*found, *(line for node, book in sight.reserved.items() for line in _cleared(sight, node, book))]


def _waits(sight: Sight, rc: ReplicationController, on: bool) -> Iterable[str]:
    places = _nominations(sight, rc.id)
    missing = max(0, rc.replicas_desired - len(sight.pods_of(rc.id)))
    if places and (not on or not _works(rc)):
        yield f"{rc.name} waits at {places}, and may not"
    if len(places) > missing:
        yield f"{rc.name} waits at {places}, and misses {missing}"
    for node, _ in places:
        if not sight.takes(node, rc.node_selector):
            yield f"{rc.name} waits on {node}, which takes none of its pods"
    if on and _works(rc) and missing and not places:
        nodes = [node for node in sight.nodes if _would_help(sight, rc, node)]
        if nodes:
            yield f"{rc.name} misses {missing} pods and waits nowhere, {nodes} could make room"


def _would_help(sight: Sight, rc: ReplicationController, node: str) -> bool:
    """Whether a node lacks nothing but capacity, and lower pods hold enough of it."""
    asked, rank = sight.asked(rc.manifest), sight.priority(rc.manifest)
    here = [place for place in sight.pods_of(rc.id) if place[0] == node]
    if not asked or len(here) >= rc.replicas_per_node or not sight.takes(node, rc.node_selector):
        return False
    book = sight.reserved.get(node, Reserved())
    if rc.replicas_per_node == 1 and (sight.taken(node, rc.pod_id) or rc.pod_id in book.nominations):
        return False
    lower = sum(book.instances[i].get("cpu", 0.0) for i in _lower(sight, node, rank, rc.id))
    return asked <= sight.free(node) - sight.promised(node, rc.id, rank) + lower


def _cleared(sight: Sight, node: str, book: Reserved) -> Iterable[str]:
    """Whoever has the first turn on a node has its room, or somebody there cannot go without harm."""
    waiting = sorted(book.nominations.items(), key=_turn)
    if not waiting:
        return
    instance, first = waiting[0]
    if first.amounts.get("cpu", 0.0) <= sight.free(node):
        yield f"{node}/{instance}: there is room for who waits"
        return
    lower = _lower(sight, node, first.priority, first.owner)
    if not lower:
        yield f"{node}/{instance}: nobody there can make room"
    elif all(_spares(sight, owner) for owner in lower.values()):
        yield f"{node}/{instance}: {sorted(lower)} could go and are still there"


def _turn(item: tuple[str, Nomination]) -> tuple[int, float, str, str]:
    instance, one = item
    return -one.priority, one.since, one.owner, instance


def _lower(sight: Sight, node: str, rank: int, but: str) -> dict[str, str]:
    """The instances on a node that can be made to go, with their owners."""
    book = sight.reserved.get(node, Reserved())
    return {
        instance: owner
        for owner, at, instance in sight.pods
        if at == node
        and owner != but
        and book.instances.get(instance, {}).get("cpu", 0.0) > ROUNDING
        and book.priority(instance) < rank
        and owner in sight.rcs
        and _works(sight.rcs[owner])
    }


def _spares(sight: Sight, owner: str) -> bool:
    """Whether one more of an owner's pods may be missing."""
    rc = sight.rcs[owner]
    serving = sum(sight.serves(place, pod) for place, pod in sight.pods_of(owner).items())
    return serving > rc.replicas_desired - rc.max_unavailable


def _nominations(sight: Sight, owner: str) -> list[Place]:
    return sorted(
        (node, instance)
        for node, book in sight.reserved.items()
        for instance, one in book.nominations.items()
        if one.owner == owner
    )


def _works(rc: ReplicationController) -> bool:
    return not rc.disabled and not rc.managed_by
