"""The removal budget of one worker's plan: spent before the plan, returned for removals that were not made
(R19).

The budget is spent before a plan is carried out, so that the workers of a farm cannot overdraw it together.
Removals of a rejected transaction are returned; otherwise farms that collide would freeze each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from farmd.cache.fleet import FleetIndex
from farmd.failsafe.budget import RemovalBudget
from farmd.failsafe.guard import FailsafeGuard
from store.pods import Place


class Spending:
    """One worker's account with the budget; ``settle`` is called once the outcome of the plan was read."""

    __slots__ = ("_budget", "_fleet", "_guard", "_kind", "_owner", "_spent")

    def __init__(
        self, fleet: FleetIndex, kind: str, owner: str, budget: RemovalBudget, guard: FailsafeGuard
    ) -> None:
        self._fleet = fleet
        self._kind = kind
        self._owner = owner
        self._budget = budget
        self._guard = guard
        self._spent: list[Place] = []

    def allows(self, places: Sequence[Place], evidence: str) -> bool:
        """Whether pods may be removed that no person asked to remove; if not, ``evidence`` freezes the kind.

        A person's acknowledgement of this very evidence allows the removals all the same (R18).
        """
        nodes = [node for node, _ in places]
        if not nodes or self._budget.allows(nodes, self._fleet.pods_here(self._kind)):
            self._spent += places
            return True
        self._guard.report(evidence)
        self._guard.look()
        return self._guard.frozen() is None

    def settle(self) -> None:
        """Return the budget of pods that still exist."""
        standing = self._fleet.pods(self._owner)
        self._budget.give_back(node for node, instance in self._spent if (node, instance) in standing)
        self._spent.clear()
