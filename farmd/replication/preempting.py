"""Both sides of preemption, as one controller sees them: pure.

It waits for room where it nominated itself, and it gives up places that others of higher priority need:
make before break where there is a place elsewhere, else by removal. What must never break: by our own
doing no more than ``max_unavailable`` pods are without health or missing at once; frozen, nothing goes; a
controller waits for no more places than it misses pods.
"""

from __future__ import annotations

from datetime import UTC, datetime

from farmd.replication import healing, transfer
from farmd.replication.model import Place, Plan, PodState, Snapshot
from scheduler.model import Nominee

# All of them fit into one transaction, whatever nodes they share (R25).
AT_ONCE = 8
# What keeps the room is told by others, in records of theirs that nobody here watches.
LOOK_SECONDS = 15.0


def evictions(snapshot: Snapshot) -> tuple[Place, ...]:
    """Preempted pods that go without a successor: there is no place for one, and the floor allows it."""
    offer = snapshot.offer
    nowhere = bool(offer.missing) and not offer.assignments and not offer.contended
    if not nowhere or snapshot.frozen is not None or snapshot.locked or snapshot.crowded:
        return ()
    moving = transfer.moving(snapshot)
    leaving = sorted(p for p, state in snapshot.pods.items() if _gone_for_others(state) and p not in moving)
    idle = [place for place in leaving if not snapshot.pods[place].healthy]
    # One that serves goes only if a place was asked for that very pod: others' answers say nothing of it.
    asked = healing.candidate(snapshot) if offer.purpose == "transfer" else offer.stuck
    serving = [place for place in leaving if snapshot.pods[place].healthy and place == asked]
    return tuple((idle + serving[: _spare(snapshot)])[:AT_ONCE])


def to_ask(snapshot: Snapshot) -> Place | None:
    """A pod that serves and could go, while others have no place: it is asked whether it has one itself."""
    offer = snapshot.offer
    if not offer.missing or offer.assignments or offer.contended or offer.purpose == "transfer":
        return None
    if snapshot.frozen is not None or snapshot.locked or _spare(snapshot) <= 0:
        return None
    chosen = healing.candidate(snapshot)
    if chosen is None or not _gone_for_others(snapshot.pods[chosen]):
        return None
    return chosen if snapshot.pods[chosen].healthy else None


def nominations(snapshot: Snapshot) -> tuple[Nominee, ...]:
    """New nominations, where nothing that was offered remains to be taken first."""
    offer = snapshot.offer
    if offer.preemption is None or offer.assignments or offer.contended or snapshot.frozen is not None:
        return ()
    return offer.preemption.add[:AT_ONCE]


def withdrawals(snapshot: Snapshot) -> tuple[Place, ...]:
    """Nominations that are needed no longer, or cannot help any more."""
    offer, rc = snapshot.offer, snapshot.rc
    if not snapshot.nominated:
        return ()
    if rc.disabled or rc.managed_by:
        return tuple(sorted(snapshot.nominated)[:AT_ONCE])
    if offer.contended or offer.assignments:
        return ()
    # Frozen, nothing is judged anew; but who misses nothing waits for nobody, and giving up removes nothing.
    if snapshot.frozen is not None and (transfer.surplus(snapshot) < 0 or healing.evacuees(snapshot)):
        return ()
    kept = {nominee.place for nominee in offer.preemption.keep} if offer.preemption is not None else set()
    return tuple(sorted(snapshot.nominated - kept)[:AT_ONCE])


def waiting_for_room(snapshot: Snapshot) -> str:
    """Where the controller waits for room, and for whom, or why it waits nowhere; empty if it may not."""
    preemption = snapshot.offer.preemption
    if preemption is None:
        return ""
    if preemption.keep:
        return "; ".join(_wait(snapshot, nominee) for nominee in preemption.keep[:3]) + _more(
            len(preemption.keep) - 3
        )
    if not preemption.why:
        return ""
    barred = ", ".join(snapshot.holders.get(owner, owner) for owner in preemption.barred[:3])
    stay = f"; these stay: {barred}{_more(len(preemption.barred) - 3)}" if barred else ""
    return f"preempts nothing: {preemption.why}{stay}"


def kept_back(snapshot: Snapshot) -> str:
    """A pod that should make room and cannot; while pods are missing nothing else would say so."""
    held = sorted(place for place, state in snapshot.pods.items() if _gone_for_others(state))
    if not held or snapshot.frozen is not None or -transfer.surplus(snapshot) <= 0 or evictions(snapshot):
        return ""
    node, instance = held[0]
    if snapshot.locked:
        why = f"locked by {snapshot.locked}"
    elif snapshot.crowded:
        why = "as many moves as allowed are under way in the fleet"
    elif _spare(snapshot) > 0 and snapshot.now < snapshot.not_before:
        why = "the last move failed, the next is tried later"
    else:
        why = "max_unavailable allows no more to be missing"
    return f"{node}/{instance} should make room for {snapshot.pods[held[0]].preempted}: {why}"


def look_again(snapshot: Snapshot) -> float | None:
    """Seconds until those who keep the room are asked again; None: nobody is waited for."""
    preemption = snapshot.offer.preemption
    waits = preemption is not None and (preemption.keep or preemption.barred)
    due = [LOOK_SECONDS] if waits else []
    if snapshot.now < snapshot.not_before and any(
        _gone_for_others(state) for state in snapshot.pods.values()
    ):
        due.append(snapshot.not_before - snapshot.now)
    return None if snapshot.rc.disabled else min(due, default=None)


def events(plan: Plan) -> dict[str, int]:
    """What a plan does about preemption, on either side of it, for the metric."""
    moved = plan.step is not None and plan.step.action == "finish" and plan.step.cause == "preempted"
    counts = {
        "nominated": len(plan.nominations),
        "withdrawn": len(plan.withdrawals),
        "moved": int(moved),
        "removed": len(plan.evictions),
    }
    return {event: count for event, count in counts.items() if count}


def _gone_for_others(state: PodState) -> bool:
    return bool(state.preempted) and state.lost is None


def _spare(snapshot: Snapshot) -> int:
    """How many serving pods may go: missing ones and those without health count already."""
    missing = max(0, -transfer.surplus(snapshot))
    unavailable = missing + sum(not state.healthy for state in snapshot.pods.values())
    return max(0, snapshot.rc.max_unavailable - unavailable)


def _wait(snapshot: Snapshot, nominee: Nominee) -> str:
    since = datetime.fromtimestamp(nominee.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    owners = dict.fromkeys(victim.owner for victim in nominee.victims)
    names = ", ".join(snapshot.holders.get(owner, owner) for owner in owners)
    return f"preempting on node {nominee.node} since {since}" + (f", waits for {names}" if names else "")


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
