"""Rules across nodes: they count pods by *domain*, which is one value of a node label.

During one allocation counts only grow, and a domain's value falls when its count grows: ``rank``
needs both to stay near-linear. ``spread`` and ``affinity`` hold the two kinds of rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from scheduler.model import FleetView, NodeView, Reason, ScorePart


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
