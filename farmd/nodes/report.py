"""Says what a plan changes and why, for the audit: pure."""

from __future__ import annotations

from farmd.nodes.facts import Plan, Snapshot
from store.nodes import Drain
from store.words import count_of

Fields = dict[str, int | str | bool]


def why(snapshot: Snapshot, plan: Plan) -> str:
    """The reason of a plan."""
    if plan.register:
        return "its agent is running, but its record was missing"
    if plan.verdict:
        return (
            f"absent for {snapshot.absent_for or 0:.0f} s" if plan.verdict == "lost" else "its agent is back"
        )
    old, new = snapshot.draining, plan.drain
    if old is None or new is None:
        return ""
    reasons = [_left(snapshot, new) if new.stage != old.stage else ""]
    if new.overdue and not old.overdue:
        reasons.append(f"past its deadline, with {count_of(len(snapshot.left or ()), 'pod')} left")
    return "; ".join(reason for reason in reasons if reason)


def _left(snapshot: Snapshot, drain: Drain) -> str:
    """Why a stage of a drain is over."""
    if drain.stage == "system":
        return "all pods left but the system's"
    if snapshot.lost:
        return "no pods are left to run there, and its agent is given up"
    return "all pods left"


def difference(drain: Drain, other: Drain) -> Fields:
    """The fields of a drain that differ from another one."""
    stage: Fields = {"drain": drain.stage} if drain.stage != other.stage else {}
    return {**stage, **({"overdue": drain.overdue} if drain.overdue != other.overdue else {})}
