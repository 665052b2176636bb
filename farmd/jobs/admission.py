"""When the members of a gang may come: all together, or none.

In Kubernetes a scheduler of gangs admits an object that stands for all members. On nodes members are placed
on hold, and released once every one of them is ready. What must never break: two gangs that wait for each
other's places give them back; once one member was released, the rest only ever follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farmd.jobs.members import Board
from farmd.jobs.model import Plan, Slot, Snapshot
from farmd.runtime.wake import earliest


def admitted(shot: Snapshot, board: Board, plan: Plan, missing: Sequence[Slot]) -> Plan:
    """The plan for a gang; ``missing`` are its slots without a member, ``plan.create`` those with a place."""
    whole = tuple(missing) if len(plan.create) == len(missing) else ()
    if not shot.traits.holds:
        if shot.gang == "absent":
            return replace(plan, gang="create", create=())
        if shot.gang == "outdated":
            return replace(plan, gang="update", create=())
        return replace(plan, create=() if shot.gang == "waiting" else whole)
    held = [member for member in board.live.values() if member.hold]
    released = any(not member.hold for member in board.live.values())
    placed = not missing and not shot.pending and not board.occupied
    if not held or released or placed:
        ready = [member for member in held if member.phase == "held"]
        if held and (released or len(ready) == len(held)):
            return replace(plan, create=whole, release=tuple(ready))
    left = _left(shot, board)
    if held and not released and (left <= 0 or (missing and not whole)):
        return replace(plan, remove=(*plan.remove, *held), create=(), give_back=True)
    return replace(plan, create=whole, after=earliest(plan.after, left if held else None))


def _left(shot: Snapshot, board: Board) -> float:
    """Seconds until the held members of a gang give their places back."""
    oldest = min((member.at for member in board.live.values() if member.hold), default=shot.now)
    return oldest + shot.job.gang_timeout - shot.now
