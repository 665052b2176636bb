"""The row of one pod: its owner, its place, and what its node reports.

An agent's last report counts only while the agent is present; otherwise the pod's health is unknown, neither
healthy nor unhealthy (R21).
"""

from __future__ import annotations

import msgspec

from farmd.pods.state import PodState
from store.pods import Place
from store.reality import Exit, Reality
from store.times import Time

ABSENT = "its node's agent is absent"
GONE = "its pod was removed"


class PodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod.

    ``restart`` counts the restarts that were asked for, ``restarted`` is the counter that its node acted on
    (R28). ``leaving``: its process still serves, and is to stop (R39). ``gone``: the pod was removed, and its
    node has yet to say that its process ended.
    """

    owner: str
    owner_name: str
    node: str
    instance: str
    manifest: str
    labels: dict[str, str] = {}
    placed_at: Time = 0.0
    phase: str = "waiting"
    health: str = "unknown"
    healthy: bool = False
    leaving: bool = False
    health_since: Time = 0.0
    reason: str = ""
    preparing: str = ""
    started: Time = 0.0
    restarts: int = 0
    restart: int = 0
    restarted: int = 0
    pid: int = 0
    ports: dict[str, int] = {}
    exits: list[Exit] = []
    gone: bool = False


def pod_row(owner: str, name: str, place: Place, state: PodState) -> PodRow:
    """The row of one pod; ``name`` is its owner's."""
    pod, reality = state.pod.record, state.reality
    row = PodRow(
        owner=owner,
        owner_name=name,
        node=place[0],
        instance=place[1],
        manifest=pod.manifest,
        labels=pod.labels,
        placed_at=pod.at,
        restart=0 if state.intent is None else state.intent.record.restart,
        reason=ABSENT if state.absent else "",
    )
    if not isinstance(reality, Reality):
        return row
    row = msgspec.structs.replace(
        row,
        phase=_phase(state, reality),
        started=reality.started,
        restarts=reality.restarts,
        restarted=reality.restart,
        pid=reality.pid,
        ports=reality.ports,
        exits=reality.exits,
        preparing="" if state.absent else reality.preparing,
    )
    if state.absent:
        return row
    return msgspec.structs.replace(
        row,
        health=reality.health.state,
        health_since=reality.health.since,
        healthy=state.healthy,
        leaving=state.leaving,
        reason=reality.reason or reality.health.reason,
    )


def _phase(state: PodState, reality: Reality) -> str:
    """What its node does with it; until the node has acted on its intent, what it has yet to do."""
    if reality.manifest != state.pod.record.manifest:
        return "replacing"
    intent = state.intent
    behind = intent is not None and reality.intent < intent.index and reality.restart < intent.record.restart
    return "restarting" if behind else reality.phase


def gone_row(place: Place, reality: Reality, name: str, *, heard: bool) -> PodRow:
    """The row of a process that a node still runs, by its last report."""
    return PodRow(
        owner=reality.owner,
        owner_name=name,
        node=place[0],
        instance=place[1],
        manifest=reality.manifest,
        phase=reality.phase,
        started=reality.started,
        restarts=reality.restarts,
        pid=reality.pid,
        ports=reality.ports,
        exits=reality.exits,
        reason=f"{GONE}; {ABSENT}" if not heard else GONE,
        gone=True,
    )
