"""Decides the next changes of a node: pure (R21; stages of a drain).

An absent agent is neither healthy nor unhealthy until this farm itself saw it absent for the grace period;
during a freeze no agent is given up. A drain waits for all pods but the system's, then for those, then it is
done; past its deadline it reports that and goes on.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from farmd.nodes.facts import LOOK_SECONDS, NOTICE_SECONDS, Plan, Snapshot
from farmd.work.model import Blocked, frozen
from store.nodes import Drain, NodeStatus
from store.words import count_of

Verdict = Literal["", "lost", "back"]


def decide(snapshot: Snapshot) -> Plan:
    """Plan one cycle."""
    drain = _advance(snapshot)
    verdict, due = _verdict(snapshot)
    return Plan(
        register=snapshot.node is None and snapshot.present and not snapshot.broken,
        verdict=verdict,
        drain=drain,
        status=_status(snapshot, verdict, drain),
        after=_again(snapshot, drain),
        blocked=_blocked(snapshot, drain, held_back=due and not verdict),
    )


def _verdict(snapshot: Snapshot) -> tuple[Verdict, bool]:
    """The verdict to write now, and whether one is due; a freeze holds back giving up."""
    lost = snapshot.work.lost_since > 0
    if snapshot.present:
        return ("back" if lost else ""), lost
    if lost or snapshot.absent_for is None or snapshot.absent_for < snapshot.grace:
        return "", False
    return ("" if snapshot.frozen is not None else "lost"), True


def _blocked(snapshot: Snapshot, advanced: Drain | None, *, held_back: bool) -> Blocked | None:
    drain = advanced or snapshot.draining
    if held_back:
        return frozen(snapshot.frozen or "")
    if snapshot.broken:
        return Blocked("unreadable", snapshot.broken)
    if drain is not None and drain.overdue and drain.stage != "done":
        return Blocked("overdue", "its drain is past its deadline")
    return None


def _advance(snapshot: Snapshot) -> Drain | None:
    """The drain's next state; None: unchanged. What is left was read, and an empty answer was proven
    (R20).
    """
    drain, left = snapshot.draining, snapshot.left
    if drain is None or left is None:
        return None
    stage = drain.stage
    if stage == "pods" and all(pod.system for pod in left):
        stage = "system"
    if stage == "system" and not left:
        stage = "done"
    overdue = drain.overdue or (stage != "done" and 0 < drain.deadline <= snapshot.now)
    advanced = msgspec.structs.replace(drain, stage=stage, overdue=overdue)
    return advanced if advanced != drain else None


def _again(snapshot: Snapshot, advanced: Drain | None) -> float | None:
    """A drain looks again now and then, because a status of its pods' owners wakes no worker."""
    drain = advanced or snapshot.draining
    if drain is None or drain.stage == "done":
        return None
    if drain.overdue or not drain.deadline:
        return LOOK_SECONDS
    return min(LOOK_SECONDS, max(0.0, drain.deadline - snapshot.now))


# -- what people are told ------------------------------------------------------------------------
def _status(snapshot: Snapshot, verdict: Verdict, advanced: Drain | None) -> NodeStatus | None:
    drain = advanced or (snapshot.node.drain if snapshot.node is not None else None)
    absent = _absent_since(snapshot, verdict)
    lost = verdict == "lost" or (snapshot.work.lost_since > 0 and verdict != "back")
    if snapshot.broken:
        status = NodeStatus(state="blocked", reason=snapshot.broken)
    elif drain is not None:
        status = _drain_status(snapshot, drain)
    elif lost:
        status = NodeStatus(state="lost", reason="its agent is given up")
    elif absent:
        status = NodeStatus(state="absent")
    else:
        return None
    before = snapshot.status
    since = before.since if before is not None and before.state == status.state else snapshot.now
    known = snapshot.stated or (before.labels if before is not None else {})
    return msgspec.structs.replace(
        status,
        absent_since=absent,
        labels=dict(known) if absent else {},
        since=since,
        farm=snapshot.farm,
    )


def _absent_since(snapshot: Snapshot, verdict: Verdict) -> float:
    """Since when the agent is reported absent, in seconds since the epoch; 0: it is not reported."""
    if snapshot.present:
        return 0.0
    if snapshot.work.lost_since > 0:
        return snapshot.work.absent_since
    if snapshot.status is not None and snapshot.status.absent_since > 0 and verdict != "lost":
        return snapshot.status.absent_since  # an estimate that another second would change is no news
    if snapshot.absent_for is None or snapshot.absent_for < min(NOTICE_SECONDS, snapshot.grace):
        return 0.0
    if snapshot.frozen is not None:
        return 0.0  # half of the fleet would write at once what the freeze says already
    return snapshot.now - snapshot.absent_for


def _drain_status(snapshot: Snapshot, drain: Drain) -> NodeStatus:
    if drain.stage == "done":
        return NodeStatus(state="drained")
    left = snapshot.left or ()
    reason = ""
    if drain.overdue:
        reason = "past its deadline" + (": health floors are ignored" if drain.ignores_floor else "")
    return NodeStatus(
        state="draining",
        reason=reason,
        left=len(left),
        left_system=sum(pod.system for pod in left),
        waiting=list(snapshot.waiting),
    )


# Says what a plan changes and why, for the audit: pure.


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
