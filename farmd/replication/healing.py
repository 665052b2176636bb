"""Decides which pods a controller replaces or moves by itself, and how many at a time: pure (W17).

Pods on lost nodes are removed in one transaction with the placing of their successors. Pods that must leave a
node, or stay unhealthy, move one at a time: the successor is made before the old pod goes. What must never
break: silence is not illness (an absent agent, a missing or unreadable reality, or unknown health replaces
nothing: R21, R22, W24), and through the controller's own changes no more than ``max_unavailable`` pods are
unavailable at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from farmd.pods.ailing import restarts
from farmd.pods.state import PodState, replaceable_at
from farmd.replication.facts import Cause, MoveStep, Need, Plan, Snapshot
from store.pods import Place
from store.work import Transfer

# Moves one pod to another node, make before break: a pure state machine.
#
# start: a place is chosen, its room reserved, and the move noted → place: the new pod stands beside the old
# one → finish: the new pod is available, and the old one goes. Each step is one fenced transaction, so any
# farm can continue after any step. What must never break: a healthy pod is not removed before its successor
# is available, and no reservation outlives a move that was given up (p2 removed first, and leaked
# reservations: W16).

BACKOFF_START = 60.0
BACKOFF_LIMIT = 3600.0


def surplus(snapshot: Snapshot) -> int:
    """Pods beyond the desired count; both pods of a move count as one."""
    return len(snapshot.pods) - snapshot.rc.replicas_desired - (1 if _paired(snapshot) else 0)


def moving(snapshot: Snapshot) -> frozenset[Place]:
    """Both places of the move under way, which no other change may touch."""
    transfer = snapshot.transfer
    return frozenset() if transfer is None else frozenset({transfer.old, transfer.new})


def advance(snapshot: Snapshot) -> MoveStep | None:
    """The next step of the move under way; None: there is no move, or it waits.

    A freeze stops moves, but a count that a person lowered since ends a move at once (R18). A move that a
    manager finds under way is ended at once by the worker that began it (R14).
    """
    transfer, taken = snapshot.transfer, snapshot.rc.taken
    if transfer is None or snapshot.rc.disabled or (snapshot.locked and not taken):
        return None
    step = _due(snapshot, transfer)
    if taken and (step is None or step.action == "place"):
        step = _step("cancel", transfer, f"{snapshot.rc.managed_by} took over")
    if snapshot.frozen is not None and not (
        snapshot.commanded and step is not None and step.action == "cancel" and surplus(snapshot) > 0
    ):
        return None
    return step


def look_again(snapshot: Snapshot) -> float | None:
    """Seconds until the move under way fails by time alone; None: it does not, or the thaw comes first.

    After its deadline it fails as soon as the new pod is unhealthy, which is an event.
    """
    if snapshot.transfer is None or snapshot.rc.disabled or snapshot.rc.taken:
        return None
    if snapshot.locked or snapshot.frozen is not None:
        return None
    left = snapshot.transfer.deadline - snapshot.now
    return left if left > 0 else None


def backoff(failures: int) -> float:
    """The delay before the next move, after so many failures in a row."""
    return float(min(BACKOFF_LIMIT, BACKOFF_START * 2 ** min(failures - 1, 10)))


def _due(snapshot: Snapshot, transfer: Transfer) -> MoveStep | None:
    old, new = snapshot.pods.get(transfer.old), snapshot.pods.get(transfer.new)
    if new is None:
        return _before_placing(snapshot, transfer, old)
    if old is None:
        return _step("finish", transfer, "the old pod is gone")
    if old.lost is not None or new.available:
        return _step("finish", transfer)
    if new.healthy and surplus(snapshot) <= 0:
        return None  # it serves, and only time is missing: it is not taken down again
    if why := _pointless(snapshot, transfer, old):
        return _step("cancel", transfer, why)
    if new.lost is not None or not new.retained:
        return _step("rollback", transfer, f"{transfer.new_node} may not keep it any more")
    if snapshot.now >= transfer.deadline:
        return _step("rollback", transfer, f"not healthy after {transfer.deadline - transfer.since:.0f} s")
    return None


def _before_placing(snapshot: Snapshot, transfer: Transfer, old: PodState | None) -> MoveStep:
    if old is None:
        return _step("cancel", transfer, "the old pod is gone")
    if why := _pointless(snapshot, transfer, old):
        return _step("cancel", transfer, why)
    if transfer.phase == "placed":
        return _step("rollback", transfer, "the new pod was removed by somebody else")
    if snapshot.taken:
        return _step("rollback", transfer, f"its place belongs to {snapshot.taken}")
    if snapshot.roomless:
        return _step(
            "cancel", transfer, f"the reservation on {transfer.new_node} is not what the pod requests"
        )
    if snapshot.now >= transfer.deadline:
        return _step("rollback", transfer, f"not placed after {transfer.deadline - transfer.since:.0f} s")
    return _step("place", transfer)


def _pointless(snapshot: Snapshot, transfer: Transfer, old: PodState) -> str:
    """Why the move is not needed any more; empty: it is."""
    if surplus(snapshot) > 0:
        return "fewer replicas are desired"
    if transfer.cause == "unhealthy":
        # With a placed successor the move goes on, because a pod that passes for a moment usually fails
        # again.
        again = old.healthy and transfer.phase != "placed"
        return f"the pod on {transfer.old_node} is healthy again" if again else ""
    return f"{transfer.old_node} may keep its pod again" if old.retained else ""


def _paired(snapshot: Snapshot) -> bool:
    transfer = snapshot.transfer
    return transfer is not None and transfer.old in snapshot.pods and transfer.new in snapshot.pods


def _step(action: str, transfer: Transfer, reason: str = "") -> MoveStep:
    return MoveStep(action, transfer.old, transfer.new, transfer.cause, reason)  # type: ignore[arg-type]


GRACE_SECONDS = 300.0
# So many moves fit into one transaction, whatever nodes they share (R25).
MOVES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Delay:
    """Why a due change is delayed, and when to look again (seconds; None: at an event)."""

    reason: str = ""
    after: float | None = None


def need(snapshot: Snapshot) -> Need | None:
    """What to ask places for now: first for missing pods, then for lost ones, then for a move."""
    rc = snapshot.rc
    if rc.disabled or rc.taken or advance(snapshot) is not None or snapshot.completed:
        return None
    missing = -surplus(snapshot)
    if missing > 0:
        return Need("additions", missing)
    if snapshot.frozen is not None:
        return None
    if missing == 0 and (places := evacuees(snapshot)):
        return Need("moves", len(places), places)
    if missing == 0 and (chosen := candidate(snapshot)) is not None:
        return Need("transfer", 1, (chosen,), cause_of(snapshot, snapshot.pods[chosen]))
    return None


def unasked(snapshot: Snapshot, plan: Plan) -> list[Place]:
    """The pods that a plan removes and no person asked to remove (R19)."""
    places = [place for place, _ in plan.moves if not forced_out(snapshot.pods[place])]
    if plan.step is not None and plan.step.action == "finish" and plan.step.cause != "draining":
        places += [plan.step.old] if plan.step.old in snapshot.pods else []
    return places


def evacuees(snapshot: Snapshot) -> tuple[Place, ...]:
    """Pods that are replaced without waiting for their successors: on lost nodes, and under forced drains."""
    exempt = moving(snapshot)
    forced = [place for place, state in snapshot.unwell.items() if forced_out(state) and place not in exempt]
    lost = [place for place in _lost(snapshot) if place not in exempt and place not in forced]
    room = max(0, snapshot.rc.unavailable_limit - len(_arriving(snapshot))) if lost else 0
    return tuple((sorted(forced) + sorted(lost)[:room])[:MOVES_AT_ONCE])


def forced_out(state: PodState) -> bool:
    """Whether a forced drain removes the pod, in spite of the health floor."""
    return state.draining == "forced" and not state.retained


def candidate(snapshot: Snapshot) -> Place | None:
    """The pod to move next; those that must leave their node come before unhealthy ones."""
    if snapshot.transfer is not None:
        return None
    wanted = [place for place in should_move(snapshot) if not _put_off(snapshot, place)]
    wanted = [place for place in wanted if _keeps_floor(snapshot, place)]
    return min(wanted, key=lambda place: _order(snapshot, place), default=None)


def should_move(snapshot: Snapshot) -> list[Place]:
    """Pods that should move, whether or not they may now: their nodes must not keep them, or they stay
    unhealthy on the right manifest.
    """
    rc, limit = snapshot.rc, snapshot.rc.unhealthy_after
    late = {place for place, since in snapshot.sick.items() if 0 < limit <= snapshot.now - since}
    return [
        place
        for place, state in snapshot.unwell.items()
        if (place in late and state.pod.record.manifest == rc.manifest) or _must_leave(snapshot, state)
        if state.lost is None and not forced_out(state)
    ]


def restarted(snapshot: Snapshot) -> tuple[tuple[Place, ...], float | None]:
    """The unhealthy pod that should move and finds no place, if it is to be restarted in place now; and the
    seconds until it is.
    """
    rc, offer, place = snapshot.rc, snapshot.offer, candidate(snapshot)
    nowhere = offer.purpose == "transfer" and offer.missing and not offer.contended
    if place is None or not nowhere or snapshot.crowded or snapshot.frozen is not None:
        return (), None
    state = snapshot.pods[place]
    if cause_of(snapshot, state) != "unhealthy" or state.foreign(rc.id) or state.altered(rc.id):
        return (), None
    due, later = restarts({place: state}, rc.restart, rc.unhealthy_after, snapshot.now)
    return tuple(due), later


def cause_of(snapshot: Snapshot, state: PodState) -> Cause:
    """The cause of a pod's move."""
    if state.draining and not state.retained:
        return "draining"
    return "ineligible" if _must_leave(snapshot, state) else "unhealthy"


def waiting(snapshot: Snapshot) -> Delay:
    """The delayed changes, with the reason for people."""
    rc, timers, reason = snapshot.rc, list[float](), ""
    if rc.disabled or rc.taken:
        return Delay()
    if rc.unhealthy_after > 0 and snapshot.transfer is None:
        due = [since + rc.unhealthy_after for since in snapshot.sick.values()]
        timers += [at for at in due if at > snapshot.now]
    if rc.on_lost == "replace" and any(state.lost is not None for state in snapshot.unwell.values()):
        timers += [at + _grace(snapshot) for at in _arriving(snapshot)]
        timers += [at for state in snapshot.unwell.values() if (at := _replaceable_at(snapshot, state))]
    leaving = should_move(snapshot)
    # During a freeze those pods wait for the thaw, which wakes the worker; changes by time alone still need a
    # timer.
    if leaving and snapshot.frozen is None and snapshot.transfer is None and surplus(snapshot) == 0:
        timers += [snapshot.not_before]
        reason = _why_not(snapshot, min(leaving))
    left = [at - snapshot.now for at in timers if at > snapshot.now]
    return Delay(reason, min(left, default=None))


def _put_off(snapshot: Snapshot, place: Place) -> bool:
    """Whether a move is delayed because the last one failed; a drain is delayed only after a failed drain."""
    if snapshot.now >= snapshot.not_before:
        return False
    return cause_of(snapshot, snapshot.pods[place]) != "draining" or snapshot.failed in ("", "draining")


def _why_not(snapshot: Snapshot, place: Place) -> str:
    where = f"{place[0]}/{place[1]} should move ({cause_of(snapshot, snapshot.pods[place])})"
    if _put_off(snapshot, place):
        return f"{where}: the last move failed; the next one is tried later"
    if snapshot.locked:
        return f"{where}: locked by {snapshot.locked}"
    if snapshot.crowded:
        return f"{where}: as many moves as allowed are under way in the fleet"
    if snapshot.offer.purpose == "transfer" and snapshot.offer.missing:
        return f"{where}: {snapshot.offer.why}"
    if candidate(snapshot) is None:
        return f"{where}: too many of the other pods are not available"
    return ""


def _must_leave(snapshot: Snapshot, state: PodState) -> bool:
    """Whether the node must lose the pod. A static controller's pod stays on a node that merely became
    ineligible; a drain moves the pods of all.
    """
    return not state.retained and (bool(state.draining) or snapshot.rc.strategy == "dynamic")


def _order(snapshot: Snapshot, place: Place) -> tuple[bool, bool, Place]:
    """The order of moves: pods that must leave, then pods that are down, which costs no availability."""
    state = snapshot.pods[place]
    return not _must_leave(snapshot, state), not state.down, place


def _keeps_floor(snapshot: Snapshot, place: Place) -> bool:
    """Whether a move keeps the health floor; a pod that is down always may move."""
    if snapshot.pods[place].down:
        return True
    others = sum(not state.available for other, state in snapshot.pods.items() if other != place)
    return others < snapshot.rc.unavailable_limit


def _lost(snapshot: Snapshot) -> list[Place]:
    return [
        place
        for place, state in snapshot.unwell.items()
        if (at := _replaceable_at(snapshot, state)) is not None and at <= snapshot.now
    ]


def _replaceable_at(snapshot: Snapshot, state: PodState) -> float | None:
    return replaceable_at(state, snapshot.rc.on_lost, snapshot.stop_after)


def _arriving(snapshot: Snapshot) -> list[float]:
    """When the pods were placed that are not available yet and still may become available."""
    grace = _grace(snapshot)
    return [
        state.pod.record.at
        for state in snapshot.pods.values()
        if state.lost is None and not state.available and snapshot.now - state.pod.record.at < grace
    ]


def _grace(snapshot: Snapshot) -> float:
    return (snapshot.rc.unhealthy_after or GRACE_SECONDS) + snapshot.rc.min_healthy_time
