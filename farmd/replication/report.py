"""Says why a plan changes pods, in one line for the audit: pure.

Every audit record of the plan has this reason. A step of a move has its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from farmd.pods.ailing import why_restarted
from farmd.replication import healing
from farmd.replication.facts import Plan, Snapshot
from farmd.work import owned
from store.words import count_of, listed, share

NAMES_AT_MOST = 3


def why(snapshot: Snapshot, plan: Plan) -> str:
    """The reasons of all parts of a plan; empty for a step of a move."""
    reasons = [
        _additions(snapshot) if plan.additions else "",
        _removals(snapshot) if plan.removals else "",
        _moves(snapshot, plan),
        f"done for good: {listed([name for _, name in plan.completions], NAMES_AT_MOST)}"
        if plan.completions
        else "",
        "intents were lost or changed" if plan.repairs else "",
        owned.why_replaced(snapshot.rc, plan, snapshot.pods),
        why_restarted(plan.restarts, snapshot.rc.unhealthy_after),
    ]
    return "; ".join(reason for reason in reasons if reason)


def _additions(snapshot: Snapshot) -> str:
    desired = snapshot.rc.replicas_desired
    return f"{share(-healing.surplus(snapshot), desired, 'pod')} missing"


def _removals(snapshot: Snapshot) -> str:
    surplus = healing.surplus(snapshot)
    if surplus > 0:
        return f"{count_of(surplus, 'pod')} more than {snapshot.rc.replicas_desired}"
    return "a forced drain, and no place elsewhere"


def _moves(snapshot: Snapshot, plan: Plan) -> str:
    forced = {place[0] for place, _ in plan.moves if healing.forced_out(snapshot.pods[place])}
    lost = {place[0] for place, _ in plan.moves} - forced
    parts = [f"lost: {_names(lost)}" if lost else "", f"forced drain of {_names(forced)}" if forced else ""]
    return "; ".join(part for part in parts if part)


def _names(nodes: Iterable[str]) -> str:
    return listed(sorted(nodes), NAMES_AT_MOST)
