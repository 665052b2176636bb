"""Affinity of pods to nodes by node labels, and affinity and anti-affinity between pods by pod labels.

Affinity to nodes is fixed for a node. The rules between pods count the pods that match a selector in a
domain: a node, or all nodes with one value of a label. A rule restricts only new pods of the manifest that
states it: it removes no placed pod, and a placed pod's rule does not restrict other new pods.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from scheduler.constraints import check_weight, pod_selector
from scheduler.domains import Admission
from scheduler.model import NodeView, PlacementRequest, Reason, ScorePart
from scheduler.requirement import Requirement
from store.manifests import AntiAffinity, PodAffinity
from store.words import count_of


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
        """In [0, 1], the same for ever."""
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
