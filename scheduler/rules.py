"""The rules across nodes of one request: its spreads, and its affinities and anti-affinities between pods."""

from __future__ import annotations

from scheduler.affinity import anti_affinity_rules, pod_affinity_rules
from scheduler.domains import DomainRule, observe_fleet
from scheduler.feasibility import standing_reasons
from scheduler.model import FleetView
from scheduler.requirement import Requirement
from scheduler.spread import KEEPS_DOMAIN, spread_rules


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
