"""Choosing nodes: the best score first, in order of name where scores are equal.

Pods are placed one after the other, and each counts those before it. The cost is near-linear: nodes
with the same domains form a group, a group keeps its nodes sorted, and a heap keeps the groups.
Scores only fall while pods are placed, so an entry at the head of the heap whose score is up to date
is the best; an outdated entry goes back with its new score.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence

from scheduler.constraints import Requirement, next_instance, tolerates
from scheduler.feasibility import load_value, room, room_reasons, standing_reasons
from scheduler.model import Assignment, FleetView, NodeView, ScorePart
from scheduler.rules import Admission, DomainRule, affinity_parts, affinity_points
from store import codec
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


# Rankings of nodes that are kept from one question to the next, and follow the nodes that changed.
#
# Most questions are for pods without rules across nodes, at most one a node. Whether a node takes such pods
# at all, and how it scores, is then the same for all owners with the same selector, placement block and
# resources. A question costs a look at which nodes changed and at the best places, and judges no other
# node. The answer is that of judging all nodes: what depends on the owner is judged for each place.

# A ranking of 2,000 nodes takes 0.3 MB.
KEPT = 8

_Ranked = tuple[float, str]  # negated score and name, the best first


def rankable(requirement: Requirement) -> bool:
    """Whether placing one of these pods changes the score of no other place, as far as the request says."""
    return requirement.exclusive and not requirement.request.replaces


class Rankings:
    """The rankings of the requests that were asked about last; not thread-safe."""

    def __init__(self) -> None:
        self._view: FleetView = {}
        self._kept: dict[object, _Ranking] = {}

    def places(self, requirement: Requirement, count: int, view: FleetView) -> list[Assignment]:
        """Up to ``count`` places for a request that is ``rankable`` and has no rules across nodes."""
        self._follow(view)
        ranking = self._ranking(requirement)
        ranking.refresh(view)
        request, pod_id = requirement.request, requirement.pod_id
        places: list[Assignment] = []
        for _, name in ranking.ordered(requirement, view):
            if len(places) >= count:
                break
            if request.among is not None and name not in request.among:
                continue
            if not room_reasons(requirement, view[name]):
                places.append(Assignment(name, pod_id))
        return places

    def _follow(self, view: FleetView) -> None:
        before, self._view = self._view, view
        if before is view:
            return
        changed = {name for name, node in view.items() if before.get(name) is not node}
        changed |= before.keys() - view.keys()
        for ranking in self._kept.values():
            ranking.stale |= changed

    def _ranking(self, requirement: Requirement) -> _Ranking:
        """The ranking of the requests that are like this one; the one that was not used for longest goes."""
        manifest, selector = requirement.request.manifest, requirement.request.selector
        placement = codec.encode(manifest.placement)
        shape = (selector, placement, requirement.amounts, requirement.features, manifest.system)
        ranking = self._kept.pop(shape, None) or _Ranking(requirement, set(self._view))
        self._kept[shape] = ranking
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return ranking


class _Ranking:
    """The nodes that may take such pods, in order; ``stale`` are those that changed since."""

    __slots__ = ("_order", "_requirement", "stale")

    def __init__(self, requirement: Requirement, names: set[str]) -> None:
        # Not exclusive: what a node has reserved under this very pod's name is not given back to it.
        self._requirement = dataclasses.replace(requirement, exclusive=False)
        self._order: list[_Ranked] = []
        self.stale = names

    def refresh(self, view: FleetView) -> None:
        """Judge the nodes that changed."""
        if not self.stale:
            return
        nodes = [view[name] for name in self.stale if name in view]
        order = [entry for entry in self._order if entry[1] not in self.stale]
        order += [
            (-round(own_points(self._requirement, node), DIGITS), node.name)
            for node in nodes
            if not standing_reasons(self._requirement, node)
        ]
        order.sort()
        self._order, self.stale = order, set()

    def ordered(self, requirement: Requirement, view: FleetView) -> Iterator[_Ranked]:
        """All entries, the best first. A node that has room reserved under the pod's name is scored anew."""
        if not requirement.amounts:
            return iter(self._order)
        pod_id = requirement.pod_id
        reserved = {name for name, node in view.items() if pod_id in node.reserved.instances}
        if not reserved:
            return iter(self._order)
        anew = sorted(
            (-round(own_points(requirement, view[name]), DIGITS), name)
            for _, name in self._order
            if name in reserved
        )
        return heapq.merge(anew, (entry for entry in self._order if entry[1] not in reserved))
