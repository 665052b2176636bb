"""Spread: the pods of one owner evenly over the values of a node label, as a hard or a soft rule.

A value is a domain as long as one of its nodes fits the selector, the constraints and the taints
and is neither cordoned, draining nor lost. A full node, or one whose agent is absent for a short
time, keeps its domain: a hard spread then places nothing instead of placing too much elsewhere.
"""

from __future__ import annotations

from collections import Counter

from scheduler.constraints import check_spread
from scheduler.domains import Admission
from scheduler.model import NodeView, Reason
from scheduler.requirement import Requirement
from store.manifests import Spread

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
