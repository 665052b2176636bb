"""What a plan may take away in a minute without a person's word (R19).

The end of this budget is evidence that something is wrong with more than a few pods, and freezes the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.replication import healing
from farmd.replication.model import Place, Plan, Snapshot

if TYPE_CHECKING:
    from farmd.replication.kind import Tools


def allow_removals(plan: Plan, snapshot: Snapshot, tools: Tools) -> bool:
    """Whether what no person asked for may be removed now; the evidence freezes it otherwise.

    It does not where a person has acknowledged this very evidence (R18).
    """
    removals = [node for node, _ in _unasked(plan, snapshot)]
    if not removals or tools.budget.allows(removals, tools.world.pods_here()):
        return True
    tools.guard.report("pods: more replacements in a minute than the removal budget allows")
    tools.guard.look()
    return tools.guard.frozen() is None


def give_back(item: str, plan: Plan, snapshot: Snapshot, tools: Tools) -> None:
    """What still stands was not removed and spends nothing: farms would freeze each other over it."""
    standing = tools.world.pods(item).keys()
    tools.budget.give_back(node for node, _ in {*_unasked(plan, snapshot)} & standing)


def _unasked(plan: Plan, snapshot: Snapshot) -> list[Place]:
    """The pods that a plan takes away without a person's word."""
    places = [place for place, _ in plan.moves if not healing.forced_out(snapshot.pods[place])]
    if plan.step is not None and plan.step.action == "finish" and plan.step.cause != "draining":
        places += [plan.step.old] if plan.step.old in snapshot.pods else []
    return places
