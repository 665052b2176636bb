"""What the workers of a kind spend of its removal budget, and get back for removals that were not made (R19).

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
    """The owners' accounts with the budget; ``settle`` is called once the outcome of a plan was read."""

    def __init__(self, fleet: FleetIndex, kind: str, budget: RemovalBudget, guard: FailsafeGuard) -> None:
        self._fleet = fleet
        self._kind = kind
        self._budget = budget
        self._guard = guard
        self._spent: dict[str, list[Place]] = {}

    def allows(self, owner: str, places: Sequence[Place], evidence: str) -> bool:
        """Whether pods may be removed that no person asked to remove; if not, ``evidence`` freezes the kind.

        A person's acknowledgement of this very evidence allows the removals all the same (R18).
        """
        nodes = [node for node, _ in places]
        if not nodes or self._budget.allows(nodes, self._fleet.pods_here(self._kind)):
            if places:
                self._spent.setdefault(owner, []).extend(places)
            return True
        self._guard.report(evidence)
        self._guard.look()
        return self._guard.frozen() is None

    def settle(self, owner: str) -> None:
        """Return the budget of an owner's pods that still exist."""
        standing = self._fleet.pods(owner)
        spent = self._spent.pop(owner, ())
        self._budget.give_back(node for node, instance in spent if (node, instance) in standing)

    def forget(self, owner: str) -> None:
        """Forget what an owner spent; its worker ended."""
        self._spent.pop(owner, None)
