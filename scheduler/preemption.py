"""Room for pods of higher priority: where it would be made. Pure.

Nothing is taken here. Whoever misses places *nominates* a node in ``reserved/<node>``, and the owners of
the lower pods there (``victims``) take them away themselves. What must never break: a node is nominated
only where capacity alone is short, and only where its victims' going makes the room.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import msgspec

from scheduler.domains import DomainRule, domain_parts, domain_reasons
from scheduler.feasibility import TOLERANCE, room_reasons, standing_reasons
from scheduler.model import FleetView, NodeView, Nominee, Preemption, Request
from scheduler.rank import DIGITS, node_parts
from scheduler.requirement import Requirement, compile_request
from scheduler.rules import domain_rules
from scheduler.victims import clearing, victims
from store.nodes import Nomination

# What is too short for one more pod, and passes: neither is a reason to give a nomination up.
_PASSES = frozenset({"capacity", "contended"})
_Place = tuple[str, str]

# Where more nodes than this could make room, those whose lowest pods suffice are weighed, by name: a farm
# does nothing else meanwhile.
WEIGHED_AT_ONCE = 500


def preempt(
    request: Request, count: int, view: FleetView, cramped: Collection[str] | None = None
) -> Preemption:
    """What becomes of an owner's nominations while ``count`` of its pods have no place anywhere.

    Those that stand are kept as long as they serve. New ones go where capacity alone is short, to the nodes
    whose highest victim is lowest, then to those with fewest victims, then by rank and name. ``cramped``: the
    nodes of which that is known already; None: they are judged here.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work.
    """
    requirement = compile_request(request)
    yielding = request.yielding or frozenset()
    rules = domain_rules(requirement, view, count)
    names = sorted(view.keys() if request.among is None else request.among & view.keys())
    nodes = [view[name] for name in names]
    keep, drop = _standing(requirement, nodes, rules, yielding, count)
    missing = count - len(keep)
    if missing <= 0 or not requirement.amounts:
        return Preemption(keep, drop=drop)
    if cramped is None:
        short = [node for node in nodes if _lacks_only_capacity(requirement, node)]
    else:
        short = [view[name] for name in sorted(cramped)]
    levels = [
        (level, node.name) for node in short if (level := _level(requirement, node, yielding)) is not None
    ]
    weighed = [view[name] for _, name in sorted(levels)[: WEIGHED_AT_ONCE + count]]
    add = tuple(_propose(requirement, weighed, rules, yielding, missing, frozenset(n.place for n in keep)))
    if len(add) == missing:
        return Preemption(keep, add, drop)
    barred = {
        pod.owner
        for node in short
        for instance in node.reserved.instances
        if (pod := node.pods.get(instance)) is not None
        and pod.owner not in {*yielding, request.owner}
        and node.reserved.priority(instance) < request.manifest.priority
    }
    why = (
        f"of {len(short)} nodes that lack nothing but capacity, no more get room by what pods of priority "
        f"below {request.manifest.priority} hold"
        if short
        else "no node lacks nothing but capacity"
    )
    return Preemption(keep, add, drop, why, tuple(sorted(barred)))


def _standing(
    requirement: Requirement,
    nodes: Sequence[NodeView],
    rules: Sequence[DomainRule],
    yielding: Collection[str],
    count: int,
) -> tuple[tuple[Nominee, ...], tuple[_Place, ...]]:
    """The owner's nominations that still serve, at most ``count``, and those to give up."""
    good: list[Nominee] = []
    drop: list[_Place] = []
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        if not node.reserved.nominations:
            continue
        own = sorted(
            n for n, one in node.reserved.nominations.items() if one.owner == requirement.request.owner
        )
        if not own:
            continue
        cleared = clearing(node, yielding)
        for instance in own:
            nomination = node.reserved.nominations[instance]
            if _serves(requirement, node, nomination) and instance in cleared.served:
                lower = tuple(v for v in cleared.victims if v.priority < nomination.priority)
                good.append(Nominee(node.name, instance, lower, nomination.since))
            else:
                drop.append((node.name, instance))
    keep: list[Nominee] = []
    held = Counter[str]()
    for nominee in sorted(good, key=lambda one: (len(one.victims), one.since, one.place)):
        node = by_name[nominee.node]
        room = requirement.request.replicas_per_node - node.owners.get(requirement.request.owner, 0)
        if len(keep) < count and held[node.name] < room and not domain_reasons(rules, node):
            keep.append(nominee)
            held[node.name] += 1
            _add(rules, node)
        else:
            drop.append(nominee.place)
    return tuple(sorted(keep)), tuple(sorted(drop))


def _serves(requirement: Requirement, node: NodeView, nomination: Nomination) -> bool:
    """Whether a nomination still says what is wanted, where a pod may still go."""
    request = requirement.request
    if nomination.priority != request.manifest.priority or nomination.amounts != dict(requirement.amounts):
        return False
    reasons = standing_reasons(requirement, node) + room_reasons(requirement, node)
    return all(reason.code in _PASSES for reason in reasons)


def _lacks_only_capacity(requirement: Requirement, node: NodeView) -> bool:
    if standing_reasons(requirement, node):
        return False
    return {reason.code for reason in room_reasons(requirement, node)} == {"capacity"}


def _level(requirement: Requirement, node: NodeView, yielding: Collection[str]) -> int | None:
    """The lowest priority such that the pods up to it hold enough; None when all lower ones do not."""
    levels: dict[int, list[dict[str, float]]] = {}
    for instance, amounts in node.reserved.instances.items():
        priority = node.reserved.priority(instance)
        pod = node.pods.get(instance)
        if priority < requirement.request.manifest.priority and pod is not None and pod.owner in yielding:
            levels.setdefault(priority, []).append(amounts)
    free = {name: node.capacity.get(name, 0.0) - node.used.get(name, 0.0) for name, _ in requirement.amounts}
    if requirement.exclusive and requirement.pod_id not in node.pods:
        levels[-1] = [node.reserved.instances.get(requirement.pod_id, {})]
    for priority in (-1, *sorted(levels.keys() - {-1})):
        for name in free:
            free[name] += math.fsum(amounts.get(name, 0.0) for amounts in levels.get(priority, ()))
        if all(asked <= free[name] + TOLERANCE for name, asked in requirement.amounts):
            return priority
    return None


def _propose(
    requirement: Requirement,
    nodes: Sequence[NodeView],
    rules: Sequence[DomainRule],
    yielding: Collection[str],
    count: int,
    standing: frozenset[_Place],
) -> Iterator[Nominee]:
    """Up to ``count`` new nominations, the cheapest first; several on a node that may hold several."""
    now = {node.name: node for node in nodes}
    options = sorted(
        option
        for node in nodes
        if (option := _option(requirement, node, rules, yielding, standing)) is not None
    )
    while count > 0:
        at = next(
            (at for at, option in enumerate(options) if not domain_reasons(rules, now[option[3]])), None
        )
        if at is None:
            return
        *_, name, nominee = options.pop(at)
        yield nominee
        count -= 1
        node = now[name] = _nominated(requirement, now[name], nominee.instance)
        _add(rules, node)
        standing |= {nominee.place}
        if (again := _option(requirement, node, rules, yielding, standing)) is not None:
            bisect.insort(options, again)


_Option = tuple[int, int, float, str, Nominee]


def _option(
    requirement: Requirement,
    node: NodeView,
    rules: Sequence[DomainRule],
    yielding: Collection[str],
    standing: frozenset[_Place],
) -> _Option | None:
    """What one more nomination on a node would cost; None when the node cannot serve it."""
    request = requirement.request
    own = node.owners.get(request.owner, 0) + sum(name == node.name for name, _ in standing)
    instance = _instance(requirement, node)
    if own >= request.replicas_per_node or instance is None:
        return None
    cleared = clearing(_nominated(requirement, node, instance), yielding)
    if instance not in cleared.served:
        return None
    before = {victim.instance for victim in victims(node, yielding)}
    new = tuple(victim for victim in cleared.victims if victim.instance not in before)
    points = sum(part.points for part in (*node_parts(requirement, node), *domain_parts(rules, node)))
    highest = max((victim.priority for victim in new), default=-1)
    return highest, len(new), -round(points, DIGITS), node.name, Nominee(node.name, instance, new)


def _instance(requirement: Requirement, node: NodeView) -> str | None:
    """A name that nobody has or waits for; an exclusive pod has only one."""
    taken = node.reserved.nominations
    if requirement.exclusive:
        return None if requirement.pod_id in taken else requirement.pod_id
    number = 0
    while (name := f"{requirement.pod_id}~{number}") in node.pods or name in taken:
        number += 1
    return name


def _nominated(requirement: Requirement, node: NodeView, instance: str) -> NodeView:
    """The node with one more nomination of this owner, the youngest of its priority."""
    request = requirement.request
    nomination = Nomination(
        owner=request.owner,
        priority=request.manifest.priority,
        amounts=dict(requirement.amounts),
        since=math.inf,
    )
    book = msgspec.structs.replace(
        node.reserved, nominations={**node.reserved.nominations, instance: nomination}
    )
    return msgspec.structs.replace(node, reserved=book)


def _add(rules: Sequence[DomainRule], node: NodeView) -> None:
    for rule in rules:
        rule.add(rule.domain(node))
