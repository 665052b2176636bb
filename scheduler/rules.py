"""The rules across nodes of one request: its spreads, and its affinities and anti-affinities between pods."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from scheduler.constraints import Requirement, check_spread, check_weight, pod_selector
from scheduler.feasibility import standing_reasons
from scheduler.model import FleetView, NodeView, PlacementRequest, Reason, ScorePart
from store.manifests import AntiAffinity, PodAffinity, Spread
from store.words import count_of

# Rules across nodes: they count pods by *domain*, which is one value of a node label.
#
# During one allocation counts only grow, and a domain's value falls when its count grows: ``rank``
# needs both to stay near-linear. ``spread`` and ``affinity`` hold the two kinds of rule.


class Admission(Enum):
    """Whether a domain takes one more pod: now, once other domains have caught up, or never."""

    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class DomainRule(Protocol):
    """One rule of one allocation; mutable, never shared between two allocations."""

    @property
    def name(self) -> str:
        """Name of the rule's part of the score."""

    @property
    def weight(self) -> float:
        """Weight of that part; 0 for a hard rule."""

    @property
    def local(self) -> bool:
        """Whether every domain is one node, so that placing a pod changes only that node's score."""

    def observe(self, node: NodeView, counts_as_domain: bool) -> None:
        """Count one node of the fleet before anything is placed."""

    def seal(self, count: int) -> None:
        """End the counting of nodes; ``count`` pods are about to be placed."""

    def domain(self, node: NodeView) -> str | None:
        """The node's domain, None when it has none."""

    def admission(self, domain: str | None) -> Admission:
        """Whether the domain takes one more pod now."""

    def value(self, domain: str | None) -> float:
        """The domain's value in [0, 1]; never rises when a pod is added anywhere."""

    def add(self, domain: str | None) -> bool:
        """Count one more pod; True if a domain that was waiting may be open now."""

    def reason(self, domain: str | None) -> Reason:
        """Why a domain that is waiting or closed takes no pod now."""


def observe_fleet(rules: Sequence[DomainRule], view: FleetView, suitable: frozenset[str], count: int) -> None:
    """Let every rule count every node; only ``suitable`` nodes make their value a domain of a spread."""
    for node in view.values():
        fits = node.name in suitable
        for rule in rules:
            rule.observe(node, fits)
    for rule in rules:
        rule.seal(count)


def domain_reasons(rules: Sequence[DomainRule], node: NodeView) -> list[Reason]:
    """The reasons of the rules that keep one more pod off a node now."""
    return [
        rule.reason(domain)
        for rule in rules
        if rule.admission(domain := rule.domain(node)) is not Admission.OPEN
    ]


def domain_parts(rules: Sequence[DomainRule], node: NodeView) -> list[ScorePart]:
    """The soft rules' parts of a node's score."""
    return [ScorePart(rule.name, rule.value(rule.domain(node)), rule.weight) for rule in rules if rule.weight]


# Affinity of pods to nodes by node labels, and affinity and anti-affinity between pods by pod labels.
#
# Affinity to nodes is fixed for a node. The rules between pods count the pods that match a selector in a
# domain: a node, or all nodes with one value of a label. A rule restricts only new pods of the manifest
# that states it: it removes no placed pod, and a placed pod's rule does not restrict other new pods.


def affinity_points(requirement: Requirement, node: NodeView) -> float:
    """Sum of the weights of the affinities that a node satisfies."""
    return float(sum(weight for rule, weight in requirement.affinities if rule.holds(node.labels)))


def affinity_parts(requirement: Requirement, node: NodeView) -> list[ScorePart]:
    """The affinities as parts of the score; unsatisfied ones count 0."""
    return [
        ScorePart(f"affinity:{rule.text}", 1.0 if rule.holds(node.labels) else 0.0, float(weight))
        for rule, weight in requirement.affinities
    ]


class _PodRule:
    """Counts the pods that match a selector, by domain. Pods in ``request.leaving``, and pods of owners in
    ``request.replaces``, do not count.
    """

    weight = 0.0

    def __init__(self, rule: AntiAffinity | PodAffinity, request: PlacementRequest, field: str) -> None:
        self._selector = pod_selector(rule.selector, field)
        self.local = not rule.topology
        self._rule = rule
        self._request = request
        self._grows = self._selector.matches(request.labels)
        self._counts: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()

    def observe(self, node: NodeView, counts_as_domain: bool) -> None:  # noqa: ARG002 - spread needs it
        """Count the matching pods of a node, whether it is suitable or not."""
        domain = self.domain(node)
        if domain is None:
            return
        self._nodes[domain] += 1
        request = self._request
        for instance, pod in node.pods.items():
            if (
                not pod.done
                and pod.owner not in request.replaces
                and (not request.leaving or (node.name, instance) not in request.leaving)
                and self._selector.matches(pod.labels)
            ):
                self._counts[domain] += 1

    def seal(self, count: int) -> None:  # noqa: ARG002 - spread needs it
        """Set ``local``: whether every domain is one node."""
        self.local = all(nodes == 1 for nodes in self._nodes.values())

    def domain(self, node: NodeView) -> str | None:
        """The node's value of the topology label, or the node itself."""
        return node.labels.get(self._rule.topology) if self._rule.topology else node.name

    def add(self, domain: str | None) -> bool:
        """Count a placed pod if the rule's selector matches it; no domain ever reopens."""
        if self._grows and domain is not None:
            self._counts[domain] += 1
        return False


class AntiAffinityRule(_PodRule):
    """Keep away from pods that match a selector. A hard rule closes every domain with a matching pod; the
    soft value is 1 / (1 + matching pods).
    """

    def __init__(self, rule: AntiAffinity, request: PlacementRequest, field: str) -> None:
        super().__init__(rule, request, field)
        check_weight(rule.weight, 0, field)
        away = f" in {rule.topology}" if rule.topology else ""
        self.name = f"anti-affinity:{rule.selector}{away}"
        self.weight = 0.0 if rule.hard else float(rule.weight)
        self._hard = rule.hard

    def admission(self, domain: str | None) -> Admission:
        """Open unless the rule is hard and the domain holds a match; no topology label means open."""
        closed = self._hard and domain is not None and self._counts[domain] > 0
        return Admission.CLOSED if closed else Admission.OPEN

    def value(self, domain: str | None) -> float:
        """1 without matching pods, then 1/2, 1/3, …"""
        return 1.0 / (1.0 + self._counts[domain]) if domain is not None else 1.0

    def reason(self, domain: str | None) -> Reason:
        """The domain and the number of matching pods in it."""
        where = f"{self._rule.topology}={domain}" if self._rule.topology else "the node"
        count = self._counts[domain] if domain is not None else 0
        return Reason(
            "anti_affinity", f"{where} holds {count_of(count, 'pod')} matching '{self._rule.selector}'"
        )


class PodAffinityRule(_PodRule):
    """Stay with pods that match a selector: where there are some, every domain without one is closed.

    Where there are none a hash of selector and domain outweighs all else, so that workers which place the
    first pods of one group at the same time choose the same domain.
    """

    weight = 1000.0

    def __init__(self, rule: PodAffinity, request: PlacementRequest, field: str) -> None:
        super().__init__(rule, request, field)
        self.name = f"pod-affinity:{rule.selector}{f' in {rule.topology}' if rule.topology else ''}"

    def observe(self, node: NodeView, counts_as_domain: bool) -> None:
        """Count the matching pods of a node, unless they have to leave it."""
        if node.presence != "lost" and not node.drain:
            super().observe(node, counts_as_domain)

    def admission(self, domain: str | None) -> Admission:
        """Open where matching pods are, and everywhere while there are none."""
        alone = not self._counts.total()
        near = domain is not None and self._counts[domain] > 0
        return Admission.OPEN if alone or near else Admission.CLOSED

    def value(self, domain: str | None) -> float:
        """A value in [0, 1] that never changes."""
        text = f"{self._rule.selector}/{domain}".encode()
        return hashlib.blake2b(text, digest_size=1).digest()[0] / 255

    def reason(self, domain: str | None) -> Reason:
        """Where the matching pods are."""
        there = sorted(name for name, count in self._counts.items() if count)
        return Reason(
            "pod_affinity",
            f"{f'{self._rule.topology}={domain}' if self._rule.topology else 'the node'} has no pod matching"
            f" '{self._rule.selector}', which {'is' if len(there) == 1 else 'are'} on {', '.join(there[:3])}",
        )


def pod_affinity_rules(requirement: Requirement) -> list[PodAffinityRule]:
    """The rules of a request that keep pods together.

    Raises:
        PlacementInvalid: a selector that does not parse.
    """
    request = requirement.request
    return [
        PodAffinityRule(rule, request, f"placement.pod_affinity[{at}]")
        for at, rule in enumerate(request.manifest.placement.pod_affinity)
    ]


def anti_affinity_rules(requirement: Requirement) -> list[AntiAffinityRule]:
    """The anti-affinity rules of a request.

    Raises:
        PlacementInvalid: a selector that does not parse, a weight outside 0 to 100.
    """
    request = requirement.request
    return [
        AntiAffinityRule(rule, request, f"placement.anti_affinity[{at}]")
        for at, rule in enumerate(request.manifest.placement.anti_affinity)
    ]


# Spread: the pods of one owner evenly over the values of a node label, as a hard or a soft rule.
#
# A value is a domain as long as one of its nodes fits the selector, the constraints and the taints
# and is neither cordoned, draining nor lost. A full node, or one whose agent is absent for a short
# time, keeps its domain: a hard spread then places nothing instead of placing too much elsewhere.

# A node with only these standing reasons still makes its label's value a domain.
KEEPS_DOMAIN = frozenset({"agent_unknown"})


class SpreadRule:
    """Evenness over one label. Hard: no domain may exceed the emptiest by more than ``max_skew``.

    The soft value falls linearly with a domain's count and is 0 at twice the even share.
    """

    def __init__(self, spread: Spread, owner: str, leaving: frozenset[tuple[str, str]]) -> None:
        self.name = f"spread:{spread.label}"
        self.weight = 0.0 if spread.hard else float(spread.weight)
        self.local = False
        self._spread = spread
        self._owner = owner
        self._leaving: Counter[str] = Counter()
        self._leaving_pods = leaving
        self._counts: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._levels: Counter[int] = Counter()
        self._least = 0
        self._double_share = 1.0

    def observe(self, node: NodeView, counts_as_domain: bool) -> None:
        """Count the owner's pods of a domain, and the nodes that make it a domain."""
        domain = node.labels.get(self._spread.label)
        if domain is None:
            return
        if counts_as_domain:
            self._nodes[domain] += 1
        own = node.owners.get(self._owner, 0)
        if own:
            self._counts[domain] += own - sum(
                1
                for instance, pod in node.pods.items()
                if pod.owner == self._owner and (node.name, instance) in self._leaving_pods
            )

    def seal(self, count: int) -> None:
        """Compute the even share and the count of the emptiest domain."""
        self.local = all(nodes == 1 for nodes in self._nodes.values())
        levels = [self._counts[domain] for domain in self._nodes]
        self._levels = Counter(levels)
        self._least = min(levels, default=0)
        self._double_share = max(1.0, 2.0 * (sum(levels) + count) / max(1, len(levels)))

    def domain(self, node: NodeView) -> str | None:
        """The node's value of the label."""
        return node.labels.get(self._spread.label)

    def admission(self, domain: str | None) -> Admission:
        """A soft spread is always open; with a hard one a domain that is ahead waits for the emptiest."""
        if not self._spread.hard:
            return Admission.OPEN
        if domain is None:
            return Admission.CLOSED
        ahead = self._counts[domain] + 1 - self._least
        return Admission.OPEN if ahead <= self._spread.max_skew else Admission.WAITING

    def value(self, domain: str | None) -> float:
        """1 for an empty domain, 0 for one with twice the even share, and for a node without the label."""
        if domain is None:
            return 0.0
        return max(0.0, 1.0 - self._counts[domain] / self._double_share)

    def add(self, domain: str | None) -> bool:
        """Count a placed pod; True when the emptiest domain's count rose."""
        if domain is None:
            return False
        before = self._counts[domain]
        self._counts[domain] = before + 1
        if domain not in self._nodes:
            return False
        self._levels[before] -= 1
        self._levels[before + 1] += 1
        if before > self._least or self._levels[before]:
            return False
        self._least = before + 1
        return True

    def reason(self, domain: str | None) -> Reason:
        """The counts of this domain and of the emptiest, and the limit."""
        label = self._spread.label
        if domain is None:
            return Reason("spread", f"has no label {label!r} to spread over")
        emptiest = min((name for name in self._nodes if self._counts[name] == self._least), default="others")
        return Reason(
            "spread",
            f"{label}={domain} has {self._counts[domain]} of these pods and {label}={emptiest} {self._least};"
            f" one more would exceed a difference of {self._spread.max_skew}",
        )


def spread_rules(requirement: Requirement) -> list[SpreadRule]:
    """The spread rules of a request.

    Raises:
        PlacementInvalid: an empty label, a skew below 1, a weight outside 0 to 100.
    """
    request = requirement.request
    rules = []
    for at, spread in enumerate(request.manifest.placement.spread):
        check_spread(spread, f"placement.spread[{at}]")
        rules.append(SpreadRule(spread, request.owner, request.leaving))
    return rules


def domain_rules(requirement: Requirement, view: FleetView, count: int) -> list[DomainRule]:
    """The rules across nodes of a request, often none; they have counted the pods of the whole fleet."""
    rules: list[DomainRule] = [
        *spread_rules(requirement),
        *anti_affinity_rules(requirement),
        *pod_affinity_rules(requirement),
    ]
    if rules:
        suitable = frozenset(
            name
            for name, node in view.items()
            if all(reason.code in KEEPS_DOMAIN for reason in standing_reasons(requirement, node))
        )
        observe_fleet(rules, view, suitable, count)
    return rules
