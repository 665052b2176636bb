"""How fast a daemon set may change nodes: pure (p2 stored rate and minimum health, and heeded neither).

Everything is read off the pods themselves, when each was last changed and whether it is healthy since, so
that another farm goes on at the same pace. What must never break: by our own doing no more pods stop
serving than the floor allows, and no manifest reaches more than ``max_in_progress`` nodes without proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from farmd.daemonset.model import PodState, Snapshot

MINUTE = 60.0
# So long a changed pod counts as on its way; after that it has failed, and holds up nobody else's turn.
SETTLING_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How many nodes may be changed now, and if not all: why, and when to look again (seconds)."""

    allowance: int
    why: str = ""
    after: float | None = None


def pace(snapshot: Snapshot) -> Pace:
    """The smaller of what the rate and the pods on their way leave."""
    daemonset, now = snapshot.daemonset, snapshot.now
    settling = [state.pod.record.at for state in snapshot.pods.values() if on_its_way(snapshot, state)]
    room = daemonset.max_in_progress - len(settling)
    by_progress = Pace(
        max(0, room),
        f"{len(settling)} nodes are on their way, at most {daemonset.max_in_progress} may be",
        min(settling, default=now) + SETTLING_SECONDS - now,
    )
    if not daemonset.rate:
        return by_progress
    recent = [at for state in snapshot.pods.values() if now - MINUTE < (at := state.pod.record.at) <= now]
    by_rate = Pace(
        max(0, daemonset.rate - len(recent)),
        f"at most {daemonset.rate} nodes a minute are changed",
        min(recent, default=now) + MINUTE - now,
    )
    return min(by_progress, by_rate, key=lambda each: each.allowance)


def on_its_way(snapshot: Snapshot, state: PodState) -> bool:
    """Whether a pod was changed lately and does not serve yet; nobody waits for an absent agent."""
    if state.serves or state.leaving or state.contact != "present" or snapshot.outdated(state):
        return False
    return 0 <= snapshot.now - state.pod.record.at < SETTLING_SECONDS


def spare(snapshot: Snapshot) -> int:
    """How many serving pods may stop serving now."""
    serving = sum(state.serves for state in snapshot.kept.values())
    return max(0, serving - snapshot.daemonset.floor(snapshot.desired))
