"""Choosing nodes: the best score first, the name where scores are equal.

One pod after the other, each seeing those before it, yet near-linear: nodes that share their
domains form a group, a group keeps its own nodes in order, and a heap keeps the groups. Scores only
fall while pods are placed, so an entry whose score is still true when it comes up is the best there
is; one that is not goes back with its new score.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from scheduler.affinity import affinity_parts, affinity_points
from scheduler.domains import DomainRule, Door
from scheduler.feasibility import load_value, room
from scheduler.model import Assignment, NodeView, ScorePart
from scheduler.requirement import Requirement, next_instance, tolerates
from store.nodes import Taint

LOAD_WEIGHT = 20.0
TAINT_WEIGHT = -60.0
TAKEOVER_WEIGHT = 1000.0

_Ranked = tuple[float, str, "_Candidate"]  # negated score, name: heaps give the least first


def node_parts(requirement: Requirement, node: NodeView) -> list[ScorePart]:
    """The parts of a node's score that depend on this node alone, before anything is placed."""
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


class _Candidate:
    """A node that may take pods, and what it took so far."""

    __slots__ = ("fixed", "group", "next_number", "node", "room", "taken")

    def __init__(self, node: NodeView, fixed: float, room_left: int, group: _Group) -> None:
        self.node = node
        self.fixed = fixed
        self.room = room_left
        self.group = group
        self.taken = 0
        self.next_number = 0


class _Group:
    """Candidates with the same domains. ``order`` is sorted once, ``again`` holds those that changed."""

    __slots__ = ("again", "at", "domains", "order", "version")

    def __init__(self, domains: tuple[str | None, ...]) -> None:
        self.domains = domains
        self.order: list[_Ranked] = []
        self.again: list[_Ranked] = []
        self.at = 0
        self.version = 0

    def best(self) -> _Ranked | None:
        if self.at < len(self.order):
            first = self.order[self.at]
            return self.again[0] if self.again and self.again[0] < first else first
        return self.again[0] if self.again else None

    def pop(self) -> None:
        if self.at < len(self.order) and not (self.again and self.again[0] < self.order[self.at]):
            self.at += 1
        else:
            heapq.heappop(self.again)


def choose(
    requirement: Requirement, nodes: Sequence[NodeView], rules: Sequence[DomainRule], count: int
) -> list[Assignment]:
    """Up to ``count`` places on nodes that have no reason of their own against one more pod.

    ``rules`` have been sealed and are counted further. Fewer places mean that the nodes are full or
    that a hard rule across nodes allows no more.
    """
    return _Choice(requirement, nodes, rules).take(count)


class _Choice:
    """The working state of one ``choose``."""

    def __init__(
        self, requirement: Requirement, nodes: Sequence[NodeView], rules: Sequence[DomainRule]
    ) -> None:
        self._requirement = requirement
        self._local = [rule for rule in rules if rule.local]
        self._shared = [rule for rule in rules if not rule.local]
        self._waiting: dict[int, list[_Candidate | _Group]] = {id(rule): [] for rule in rules}
        self._queue: list[tuple[float, str, int, _Group]] = []
        self._places: list[Assignment] = []
        groups: dict[tuple[str | None, ...], _Group] = {}
        shared = self._shared
        for node in nodes:
            key = tuple([rule.domain(node) for rule in shared]) if shared else ()
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(key)
            candidate = _Candidate(node, self._fixed(node), room(requirement, node), group)
            group.order.append((-self._points(candidate), node.name, candidate))
        for group in groups.values():
            group.order.sort()
            self._enqueue(group)

    def take(self, count: int) -> list[Assignment]:
        """Place one after the other."""
        places = self._places
        while len(places) < count and self._queue:
            score, name, version, group = heapq.heappop(self._queue)
            if version != group.version:
                continue
            best = group.best()
            if best is None or not self._admitted(group, self._shared, group.domains):
                continue
            if best[0] - self._shared_points(group) != score or best[1] != name:
                self._enqueue(group)
                continue
            self._serve(group, best[2], count)
        return places

    def _serve(self, group: _Group, candidate: _Candidate, count: int) -> None:
        """Place on a group's best node; without any rule, go on with this group while it lasts."""
        while True:
            group.pop()
            if not self._local or self._admitted(candidate, self._local, self._domains(candidate.node)):
                self._place(candidate)
            if self._shared or self._local:
                break
            best = group.best()
            if best is None or len(self._places) >= count:
                return
            candidate = best[2]
        self._enqueue(group)

    def _place(self, candidate: _Candidate) -> None:
        node = candidate.node
        instance, candidate.next_number = next_instance(self._requirement, node, candidate.next_number)
        self._places.append(Assignment(node.name, instance, replaced_owner(self._requirement, node)))
        candidate.taken += 1
        for rule, domain in zip(self._shared, candidate.group.domains, strict=True):
            if rule.add(domain):
                self._reopen(rule)
        for rule in self._local:
            if rule.add(rule.domain(node)):
                self._reopen(rule)
        if candidate.taken < candidate.room:
            self._rejoin(candidate)

    def _admitted(
        self, who: _Candidate | _Group, rules: Sequence[DomainRule], domains: Sequence[str | None]
    ) -> bool:
        """Whether all rules let it in; one that must wait for a rule is kept by that rule."""
        waits_for = None
        for rule, domain in zip(rules, domains, strict=True):
            door = rule.door(domain)
            if door is Door.CLOSED:
                return False
            if door is Door.WAITING:
                waits_for = rule
        if waits_for is not None:
            self._waiting[id(waits_for)].append(who)
        return waits_for is None

    def _reopen(self, rule: DomainRule) -> None:
        """Let everybody who waited for a rule try again."""
        waiting, self._waiting[id(rule)] = self._waiting[id(rule)], []
        for who in waiting:
            if isinstance(who, _Candidate):
                self._rejoin(who)
                self._enqueue(who.group)
            else:
                self._enqueue(who)

    def _rejoin(self, candidate: _Candidate) -> None:
        entry = (-self._points(candidate), candidate.node.name, candidate)
        heapq.heappush(candidate.group.again, entry)

    def _enqueue(self, group: _Group) -> None:
        best = group.best()
        if best is not None:
            group.version += 1
            entry = (best[0] - self._shared_points(group), best[1], group.version, group)
            heapq.heappush(self._queue, entry)

    def _domains(self, node: NodeView) -> list[str | None]:
        return [rule.domain(node) for rule in self._local]

    def _fixed(self, node: NodeView) -> float:
        """The part of a node's score that no placement changes."""
        points = affinity_points(self._requirement, node) if self._requirement.affinities else 0.0
        if node.taints:
            points += TAINT_WEIGHT * len(_disliked(self._requirement, node))
        if self._requirement.request.replaces and replaced_owner(self._requirement, node):
            points += TAKEOVER_WEIGHT
        return points

    def _points(self, candidate: _Candidate) -> float:
        """What a node scores by itself, with the rules whose domains are single nodes."""
        node = candidate.node
        points = candidate.fixed + LOAD_WEIGHT * load_value(self._requirement, node, candidate.taken)
        for rule in self._local:
            if rule.weight:
                points += rule.weight * rule.value(rule.domain(node))
        return points

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
