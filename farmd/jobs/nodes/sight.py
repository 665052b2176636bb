"""Members of a job on nodes, as the plan sees them: made from pods, intents and what agents report.

What must never break: of a pod whose agent is absent nobody can tell how it goes, until its node is given up
and its agent must have stopped it there (R21, R27).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from farmd.jobs.model import Cause, Member, Phase, Slot
from farmd.jobs.nodes.instances import slot_of
from farmd.pods.state import PodState, replaceable_at
from store.jobs import Job
from store.pods import Place
from store.reality import Exit, Glance

_PHASES: dict[str, Phase] = {
    "held": "held",
    "running": "running",
    "backoff": "running",
    "exited": "running",
    "stopping": "running",
}


def members(
    job: Job,
    pods: Mapping[Place, PodState],
    stop_after: Mapping[str, float],
    now: float,
    doubted: Collection[Place],
) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """The members of a job's slots, and its strays; ``stop_after`` is that of each manifest. What the store
    says of the pods at ``doubted`` places may be of the past.
    """
    known, strays = [], []
    for place, state in sorted(pods.items()):
        found = slot_of(job, place[1])
        ident = "/".join(place)
        if found is None:
            strays.append(Member(slot=Slot("", 0), id=ident, version=str(state.pod.index)))
            continue
        slot, attempt = found
        known.append(
            Member(
                slot=slot,
                attempt=attempt,
                id=ident,
                version=str(state.pod.index),
                hold=state.intent is not None and state.intent.record.hold,
                at=state.pod.record.at,
                **_seen(
                    job,
                    state,
                    stop_after.get(state.pod.record.manifest, 0.0),
                    now,
                    doubted=place in doubted,
                ),
            )
        )
    return tuple(known), tuple(strays)


def leaving(job: Job, left: Mapping[Place, Glance | None]) -> tuple[Member, ...]:
    """What nodes run, or may run, of members whose pods were removed, and how others of these ended."""
    found = []
    for place, said in left.items():
        known = slot_of(job, place[1])
        if known is not None and said is not None:
            well = said.phase == "done" and _ended(said.ended, 0.0)["phase"] == "succeeded"
            over: Phase = "succeeded" if well else "failed" if said.phase == "done" else "running"
            ident = "/".join(place)
            found.append(Member(slot=known[0], attempt=known[1], id=ident, phase=over, leaving=True))
    return tuple(found)


def _seen(job: Job, state: PodState, stop_after: float, now: float, *, doubted: bool) -> dict[str, Any]:
    """Phase, cause and end of a member."""
    said = state.reality
    own = said if isinstance(said, Glance) and _acted(state, said) else None
    if own is not None and own.phase == "done":
        return {"restarts": own.restarts, **_ended(own.ended, now)}
    if state.pod.record.done:
        return {"phase": "failed", "cause": "lost"}
    if state.lost is not None:
        due = replaceable_at(state, job.on_lost, stop_after)
        gone = due is not None and due <= now
        return {"phase": "unknown", "cause": "lost" if gone else "", "message": "its node is lost"}
    if state.absent:
        return {"phase": "unknown", "message": "its node's agent is absent"}
    if state.draining and doubted:
        return {"phase": "unknown", "message": "waiting until its node's agent says how it goes"}
    if state.draining:
        return {"phase": "failed", "cause": "evicted", "ended": now, "message": "its node is drained"}
    message = said.reason if isinstance(said, Glance) else ""
    if own is None:
        return {"phase": "starting", "message": message}
    return {"phase": _PHASES.get(own.phase, "starting"), "restarts": own.restarts, "message": message}


def _acted(state: PodState, said: Glance) -> bool:
    """Whether the agent speaks of this very member, and acted on its intent as it is."""
    return (
        state.intent is not None
        and said.intent >= state.intent.index
        and said.manifest == state.pod.record.manifest
        and said.owner in ("", state.intent.record.owner)
    )


def _ended(end: Exit | None, now: float) -> dict[str, Any]:
    if end is None:
        return {"phase": "failed", "cause": "lost", "ended": now}
    phase: Phase = "succeeded" if end.code == 0 and not end.cause else "failed"
    cause: Cause = end.cause
    code = end.code if end.code >= 0 else 128 - end.code
    ended, message = min(end.at, now), end.message
    if phase == "succeeded" or cause == "lost":
        return {"phase": phase, "cause": cause, "ended": ended, "message": message}
    return {"phase": phase, "cause": cause, "exit": code, "ended": ended, "message": message}


def due(
    job: Job, pods: Mapping[Place, PodState], stop_after: Mapping[str, float], now: float
) -> float | None:
    """Seconds until time alone changes what can be told of a member on a lost node."""
    times = (
        replaceable_at(state, job.on_lost, stop_after.get(state.pod.record.manifest, 0.0))
        for state in pods.values()
        if not state.pod.record.done
    )
    return min((at - now for at in times if at is not None and at > now), default=None)
