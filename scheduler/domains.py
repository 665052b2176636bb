"""Rules across nodes: pods are counted by the value that a node label has, the *domain*.

Counts only grow during one allocation and every value falls when its domain's count grows; ``rank``
rests on that to stay near-linear. ``spread`` and ``affinity`` hold the two kinds of rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from scheduler.model import FleetView, NodeView, Reason, ScorePart


class Door(Enum):
    """Whether a domain takes one more pod: yes, not before others have caught up, or never."""

    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class DomainRule(Protocol):
    """One rule of one allocation; mutable, never shared between two."""

    @property
    def name(self) -> str:
        """Name of the rule's part of the score."""

    @property
    def weight(self) -> float:
        """Weight of that part; 0 for a hard rule."""

    @property
    def local(self) -> bool:
        """Whether every domain is a single node, so that placing changes that node's score only."""

    def observe(self, node: NodeView, counts_as_domain: bool) -> None:
        """See one node of the fleet before anything is placed."""

    def seal(self, count: int) -> None:
        """All nodes have been seen; ``count`` pods are about to be placed."""

    def domain(self, node: NodeView) -> str | None:
        """The node's domain, None when it has none."""

    def door(self, domain: str | None) -> Door:
        """Whether the domain takes one more pod now."""

    def value(self, domain: str | None) -> float:
        """The domain's value in [0, 1]; never rises when a pod is added anywhere."""

    def add(self, domain: str | None) -> bool:
        """Count one more pod; True when domains that were waiting may be open now."""

    def reason(self, domain: str | None) -> Reason:
        """Why a domain that is not open is not."""


def observe_fleet(rules: Sequence[DomainRule], view: FleetView, suitable: frozenset[str], count: int) -> None:
    """Show every node to every rule; ``suitable`` nodes are those whose domains matter for evenness."""
    for node in view.values():
        fits = node.name in suitable
        for rule in rules:
            rule.observe(node, fits)
    for rule in rules:
        rule.seal(count)


def domain_reasons(rules: Sequence[DomainRule], node: NodeView) -> list[Reason]:
    """Every rule that keeps one more pod off a node now."""
    return [rule.reason(domain) for rule in rules if rule.door(domain := rule.domain(node)) is not Door.OPEN]


def domain_parts(rules: Sequence[DomainRule], node: NodeView) -> list[ScorePart]:
    """The soft rules' parts of a node's score."""
    return [ScorePart(rule.name, rule.value(rule.domain(node)), rule.weight) for rule in rules if rule.weight]
