"""Moves one pod to another node, make before break: a pure state machine.

start: a place is chosen, its room reserved, and the move noted → place: the new pod stands beside the old one
→ finish: the new pod is available, and the old one goes. Each step is one fenced transaction, so any farm can
continue after any step. What must never break: a healthy pod is not removed before its successor is
available, and no reservation outlives a move that was given up (p2 removed first, and leaked reservations:
W16).
"""

from __future__ import annotations

from farmd.pods.state import PodState
from farmd.replication.model import MoveStep, Snapshot
from store.pods import Place
from store.work import Transfer

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
        return _step("rollback", transfer, "the new pod was removed by another hand")
    if snapshot.taken:
        return _step("rollback", transfer, f"its place belongs to {snapshot.taken}")
    if snapshot.roomless:
        return _step("cancel", transfer, f"the room on {transfer.new_node} is not what the pod asks for")
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
