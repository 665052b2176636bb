"""Why a plan changes what it changes, in one line for the audit: pure."""

from __future__ import annotations

from farmd.daemonset.model import Plan, Snapshot


def why(snapshot: Snapshot, plan: Plan) -> str:
    """The reasons of all parts of a plan."""
    drained = sum(bool(snapshot.pods[place].draining) for place in plan.removals)
    left = len(plan.removals) - drained
    gone = "it is being deleted" if snapshot.daemonset.deleting else f"{left} nodes may not have it"
    reasons = [
        f"{len(snapshot.vacant)} nodes should have it" if plan.additions else "",
        f"{drained} nodes are drained" if drained else "",
        gone if left else "",
        "intents were lost or altered" if plan.repairs else "",
        "another manifest is asked for" if plan.replacements else "",
    ]
    return "; ".join(reason for reason in reasons if reason)
