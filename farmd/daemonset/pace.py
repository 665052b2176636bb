"""Limits how fast a daemon set changes nodes: pure (p2 stored rate and minimum health, and used neither).

The pace is computed from the pods themselves, from when each was last changed and whether it is available
since, so another farm continues at the same pace. What must never break: through this farm's changes no more
pods stop serving than the floor allows, and no manifest reaches more than ``max_in_progress`` nodes without
proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from farmd.daemonset.model import Snapshot
from farmd.pods.state import PodState
from store.words import count_of

MINUTE = 60.0
# A changed pod has this long to become healthy; after that it has failed, and no other pod waits for it.
SETTLING_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How many nodes may be changed now; if not all, why, and when to look again (seconds)."""

    allowance: int
    why: str = ""
    after: float | None = None


def pace(snapshot: Snapshot) -> Pace:
    """The smaller of the allowances by rate and by pods in progress."""
    daemonset, now = snapshot.daemonset, snapshot.now
    settling = [state.pod.record.at for state in snapshot.pods.values() if on_its_way(snapshot, state)]
    room = daemonset.max_in_progress - len(settling)
    by_progress = Pace(
        max(0, room),
        f"{count_of(len(settling), 'node')} on the way, at most {daemonset.max_in_progress} may be",
        given_up_in(snapshot, min(settling, default=now)),
    )
    if not daemonset.rate:
        return by_progress
    recent = [at for state in snapshot.pods.values() if now - MINUTE < (at := state.pod.record.at) <= now]
    by_rate = Pace(
        max(0, daemonset.rate - len(recent)),
        f"the rate is at most {count_of(daemonset.rate, 'node')} a minute",
        min(recent, default=now) + MINUTE - now,
    )
    return min(by_progress, by_rate, key=lambda each: each.allowance)


def on_its_way(snapshot: Snapshot, state: PodState) -> bool:
    """Whether a pod was changed lately and is not available yet; pods of absent agents do not count."""
    if state.available or not state.retained or state.absent or state.lost is not None:
        return False
    if state.outdated(snapshot.daemonset.manifest, snapshot.daemonset.restart):
        return False
    return snapshot.now >= state.pod.record.at and given_up_in(snapshot, state.pod.record.at) > 0


def given_up_in(snapshot: Snapshot, changed: float) -> float:
    """Seconds until a pod that was changed at that time has failed if it is not available."""
    return changed + SETTLING_SECONDS + snapshot.daemonset.min_healthy_time - snapshot.now


def spare(snapshot: Snapshot) -> int:
    """How many available pods may stop serving now."""
    available = sum(state.available for state in snapshot.kept.values())
    return max(0, available - snapshot.daemonset.floor(snapshot.desired))
