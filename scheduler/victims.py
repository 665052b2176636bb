"""Who must leave a node so that its nominations fit: pure, and found by every farm in the same record.

What must never break: a victim's priority is strictly lower than that of whom it makes room for, no victim
could have been spared, and the nominations of a node that count here fit once its victims are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from scheduler.feasibility import TOLERANCE, turn
from scheduler.model import NodeView, Victim
from scheduler.rank import DIGITS
from store.nodes import Nomination

_Over = dict[str, float]


class Clearing(msgspec.Struct, frozen=True):
    """The pods of a node that must go, by name, and the nominated instances that have room then."""

    victims: tuple[Victim, ...]
    served: frozenset[str]


def victims(node: NodeView, yielding: Collection[str]) -> tuple[Victim, ...]:
    """The pods that must leave a node for its nominations; only those of ``yielding`` owners ever do."""
    return clearing(node, yielding).victims if node.reserved.nominations else ()


def clearing(node: NodeView, yielding: Collection[str]) -> Clearing:
    """Who goes for whom: nominations by priority, each with the lowest pods first; then some are spared.

    A nomination that does not fit even without all lower pods costs nobody a pod.
    """
    going: dict[str, Victim] = {}
    served: set[str] = set()
    over: _Over = {}
    for instance, nomination in sorted(node.reserved.nominations.items(), key=turn):
        wanted = _wanted(node, over, instance, nomination)
        chosen = _choose(node, yielding, wanted, nomination, {*going, *served, instance})
        if chosen is None:
            continue
        served.add(instance)
        over = wanted
        for victim in chosen:
            going[victim.instance] = victim
            over = _shifted(node, over, victim, -1)
    for victim in sorted(
        going.values(), key=lambda one: (-one.priority, _size(node, one, over), one.instance)
    ):
        without = _shifted(node, over, victim, 1)
        if _fits(without):
            over = without
            del going[victim.instance]
    return Clearing(tuple(sorted(going.values())), frozenset(served))


def _wanted(node: NodeView, over: _Over, instance: str, nomination: Nomination) -> _Over:
    """By how much a node is too small, by resource, with one nomination more than ``over`` counts."""
    wanted = dict(over)
    for resource, amount in sorted(nomination.amounts.items()):
        if resource not in wanted:
            wanted[resource] = node.used.get(resource, 0.0) - node.capacity.get(resource, 0.0)
        wanted[resource] += amount
    left = node.reserved.instances.get(instance, {}) if instance not in node.pods else {}
    # What was left behind under a nominated name is taken over by whoever comes.
    return {resource: amount - left.get(resource, 0.0) for resource, amount in wanted.items()}


def _choose(
    node: NodeView,
    yielding: Collection[str],
    over: _Over,
    nomination: Nomination,
    spoken_for: Collection[str],
) -> list[Victim] | None:
    """Victims for one more nomination, besides those that go anyway; None when all of them are too few."""
    if _fits(over):
        return []
    taken: list[Victim] = []
    for level in _levels(node, yielding, over, nomination, spoken_for):
        alone = next((one for one in level if _suffices(node, one, over)), None)
        if alone is not None:
            return [*taken, alone]
        for victim in level:
            over = _shifted(node, over, victim, -1)
        taken += level
        if _fits(over):
            return taken
    return None


def _levels(
    node: NodeView,
    yielding: Collection[str],
    over: _Over,
    nomination: Nomination,
    spoken_for: Collection[str],
) -> Iterator[list[Victim]]:
    """Possible victims by priority, the lowest first; within one, those that hold the least first."""
    levels: dict[int, list[tuple[float, str, Victim]]] = {}
    short = [resource for resource, amount in over.items() if amount > TOLERANCE]
    for instance, amounts in node.reserved.instances.items():
        priority = node.reserved.priority(instance)
        if priority >= nomination.priority or instance in spoken_for:
            continue
        pod = node.pods.get(instance)
        if pod is None or pod.owner not in yielding or pod.owner == nomination.owner:
            continue
        if any(amounts.get(resource, 0.0) > 0 for resource in short):
            victim = Victim(instance, pod.owner, priority)
            levels.setdefault(priority, []).append((_size(node, victim, over), instance, victim))
    for _, level in sorted(levels.items()):
        yield [victim for _, _, victim in sorted(level)]


def _shifted(node: NodeView, over: _Over, victim: Victim, sign: int) -> _Over:
    """The same once a pod has left (-1), or if it stays after all (1)."""
    amounts = node.reserved.instances[victim.instance]
    return {resource: amount + sign * amounts.get(resource, 0.0) for resource, amount in over.items()}


def _suffices(node: NodeView, victim: Victim, over: _Over) -> bool:
    amounts = node.reserved.instances[victim.instance]
    return all(amount <= amounts.get(resource, 0.0) + TOLERANCE for resource, amount in over.items())


def _fits(over: _Over) -> bool:
    return all(amount <= TOLERANCE for amount in over.values())


def _size(node: NodeView, victim: Victim, over: _Over) -> float:
    """How much of the node a pod holds, of what is short: few large ones go rather than many small ones."""
    amounts = node.reserved.instances[victim.instance]
    size = 0.0
    for resource in sorted(over):
        size += amounts.get(resource, 0.0) / (node.capacity.get(resource) or 1.0)
    return round(size, DIGITS)
