"""Choosing nodes: the best score first, in order of name where scores are equal.

Pods are placed one after the other, and each counts those before it. The cost is near-linear: nodes
with the same domains form a group, a group keeps its nodes sorted, and a heap keeps the groups.
Scores only fall while pods are placed, so an entry at the head of the heap whose score is up to date
is the best; an outdated entry goes back with its new score.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from scheduler.affinity import affinity_parts, affinity_points
from scheduler.domains import Admission, DomainRule
from scheduler.feasibility import load_value, room
from scheduler.model import Assignment, NodeView, ScorePart
from scheduler.requirement import Requirement, next_instance, tolerates
from store.nodes import Taint

LOAD_WEIGHT = 20.0
TAINT_WEIGHT = -60.0
TAKEOVER_WEIGHT = 1000.0

# Scores are rounded to so many decimals, because the sum of floats depends on their order.
DIGITS = 9

_Entry = tuple[float, str, NodeView]  # negated score and name, because a heap gives the least first


def node_parts(requirement: Requirement, node: NodeView) -> list[ScorePart]:
    """The parts of a node's score that depend on this node alone, before any pod is placed."""
    parts = [ScorePart("load", load_value(requirement, node, 0), LOAD_WEIGHT)]
    parts += affinity_parts(requirement, node)
    parts += [ScorePart(f"taint:{taint.key}", 1.0, TAINT_WEIGHT) for taint in _disliked(requirement, node)]
    if replaced_owner(requirement, node):
        parts.append(ScorePart("takeover", 1.0, TAKEOVER_WEIGHT))
    return parts


def replaced_owner(requirement: Requirement, node: NodeView) -> str:
    """The owner whose instance a pod on this node would take over; empty without one."""
    if not requirement.request.replaces or not requirement.exclusive:
        return ""
    pod = node.pods.get(requirement.pod_id)
    return pod.owner if pod is not None and pod.owner in requirement.request.replaces else ""


def own_points(requirement: Requirement, node: NodeView, taken: int = 0) -> float:
    """A node's score without rules across nodes; ``taken`` pods of this answer count as placed on it."""
    points = LOAD_WEIGHT * load_value(requirement, node, taken)
    if requirement.affinities:
        points += affinity_points(requirement, node)
    if node.taints:
        points += TAINT_WEIGHT * len(_disliked(requirement, node))
    if requirement.request.replaces and replaced_owner(requirement, node):
        points += TAKEOVER_WEIGHT
    return points


def choose(
    requirement: Requirement, nodes: Sequence[NodeView], rules: Sequence[DomainRule], count: int
) -> list[Assignment]:
    """Up to ``count`` places on ``nodes``, which have no standing or room reason against one more pod.

    ``rules`` are sealed, and count the pods that are placed. Fewer places mean that the nodes are
    full, or that a hard rule across nodes allows no more.
    """
    if not rules:
        return _by_own_score(requirement, nodes, count)
    choice = _Choice(requirement, rules)
    choice.group(nodes)
    return choice.take(count)


def _by_own_score(requirement: Requirement, nodes: Sequence[NodeView], count: int) -> list[Assignment]:
    """Without rules across nodes a pod changes the score of its own node alone: one heap is enough."""
    heap = [(-round(own_points(requirement, node), DIGITS), node.name, node, 0, 0) for node in nodes]
    heapq.heapify(heap)
    places: list[Assignment] = []
    while heap and len(places) < count:
        _, name, node, taken, number = heap[0]
        instance, number = next_instance(requirement, node, number)
        places.append(Assignment(name, instance, replaced_owner(requirement, node)))
        taken += 1
        if requirement.exclusive or taken >= room(requirement, node):
            heapq.heappop(heap)
        else:
            points = round(own_points(requirement, node, taken), DIGITS)
            heapq.heapreplace(heap, (-points, name, node, taken, number))
    return places


class _Group:
    """Nodes with the same domains. ``order`` is sorted once, ``again`` is a heap of changed nodes."""

    __slots__ = ("again", "at", "domains", "order", "version")

    def __init__(self, domains: tuple[str | None, ...]) -> None:
        self.domains = domains
        self.order: list[_Entry] = []
        self.again: list[_Entry] = []
        self.at = 0
        self.version = 0

    def best(self) -> _Entry | None:
        if self.at < len(self.order):
            first = self.order[self.at]
            return self.again[0] if self.again and self.again[0] < first else first
        return self.again[0] if self.again else None

    def pop(self) -> None:
        if self.at < len(self.order) and not (self.again and self.again[0] < self.order[self.at]):
            self.at += 1
        else:
            heapq.heappop(self.again)


class _Choice:
    """The working state of one ``choose``. ``_waiting`` holds the groups, or single nodes, by rule."""

    def __init__(self, requirement: Requirement, rules: Sequence[DomainRule]) -> None:
        self._requirement = requirement
        self._local = [rule for rule in rules if rule.local]
        self._shared = [rule for rule in rules if not rule.local]
        self._waiting: dict[int, list[tuple[_Group, NodeView | None]]] = {id(rule): [] for rule in rules}
        self._queue: list[tuple[float, str, int, _Group]] = []
        self._places: list[Assignment] = []
        self._taken: dict[str, int] = {}
        self._next_number: dict[str, int] = {}

    def group(self, nodes: Sequence[NodeView]) -> None:
        """Sort the nodes into groups."""
        groups: dict[tuple[str | None, ...], _Group] = {}
        shared = self._shared
        for node in nodes:
            key = tuple([rule.domain(node) for rule in shared]) if shared else ()
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(key)
            group.order.append(self.entry(node))
        for group in groups.values():
            group.order.sort()
            self._enqueue(group)

    def take(self, count: int) -> list[Assignment]:
        """Place up to ``count`` pods, one after the other."""
        while len(self._places) < count and self._queue:
            score, name, version, group = heapq.heappop(self._queue)
            if version != group.version:
                continue
            best = group.best()
            if best is None or not self._admitted(group, None):
                continue
            if best[0] - self._shared_points(group) != score or best[1] != name:
                self._enqueue(group)
                continue
            group.pop()
            if self._admitted(group, best[2]):
                self._place(group, best[2])
            self._enqueue(group)
        return self._places

    def entry(self, node: NodeView) -> _Entry:
        """A node with its present score."""
        return -self._points(node), node.name, node

    def _place(self, group: _Group, node: NodeView) -> None:
        requirement, name = self._requirement, node.name
        instance, number = next_instance(requirement, node, self._next_number.get(name, 0))
        self._places.append(Assignment(name, instance, replaced_owner(requirement, node)))
        for rule, domain in zip(self._shared, group.domains, strict=True):
            if rule.add(domain):
                self._reopen(rule)
        for rule in self._local:
            if rule.add(rule.domain(node)):
                self._reopen(rule)
        if not requirement.exclusive:
            self._next_number[name] = number
            taken = self._taken[name] = self._taken.get(name, 0) + 1
            if taken < room(requirement, node):
                self._rejoin(group, node)

    def _admitted(self, group: _Group, node: NodeView | None) -> bool:
        """Whether all rules admit a group (or one node of it); one that must wait is kept by its rule."""
        waits_for = None
        rules = self._shared if node is None else self._local
        domains = group.domains if node is None else [rule.domain(node) for rule in rules]
        for rule, domain in zip(rules, domains, strict=True):
            admission = rule.admission(domain)
            if admission is Admission.CLOSED:
                return False
            if admission is Admission.WAITING:
                waits_for = rule
        if waits_for is not None:
            self._waiting[id(waits_for)].append((group, node))
        return waits_for is None

    def _reopen(self, rule: DomainRule) -> None:
        """Enqueue all groups and nodes that waited for a rule."""
        waiting, self._waiting[id(rule)] = self._waiting[id(rule)], []
        for group, node in waiting:
            if node is not None:
                self._rejoin(group, node)
            self._enqueue(group)

    def _rejoin(self, group: _Group, node: NodeView) -> None:
        heapq.heappush(group.again, self.entry(node))

    def _enqueue(self, group: _Group) -> None:
        best = group.best()
        if best is not None:
            group.version += 1
            entry = (best[0] - self._shared_points(group), best[1], group.version, group)
            heapq.heappush(self._queue, entry)

    def _points(self, node: NodeView) -> float:
        """The score of a node without the rules whose domains are shared with other nodes."""
        points = own_points(self._requirement, node, self._taken.get(node.name, 0))
        for rule in self._local:
            if rule.weight:
                points += rule.weight * rule.value(rule.domain(node))
        return round(points, DIGITS)

    def _shared_points(self, group: _Group) -> float:
        return sum(
            rule.weight * rule.value(domain)
            for rule, domain in zip(self._shared, group.domains, strict=True)
            if rule.weight
        )


def _disliked(requirement: Requirement, node: NodeView) -> list[Taint]:
    """Soft taints of a node that the manifest does not tolerate."""
    tolerations = requirement.request.manifest.placement.tolerations
    return [
        taint
        for taint in node.taints
        if taint.effect == "prefer-no-schedule" and not tolerates(tolerations, taint)
    ]
