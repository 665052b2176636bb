"""Finds the worst pod of an owner and says what ails it, for the status and the alerts.

Decisions use the short realities in memory; exits and reasons are read from the store, for the worst pod
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farmd.pods.state import PodState, sick_since
from store import codec
from store.consul.client import ConsulClient
from store.errors import RecordInvalid
from store.keys import Keys
from store.pods import Place
from store.reality import Glance, Reality, ending, fails
from store.words import count_of, share

AILING_SECONDS = 300.0
"""A pod that runs and fails its check for so long is an incident where its owner does not move it."""

# The worst first.
_SEVERITY = ("failed", "backoff", "exited")


def worst(pods: Mapping[Place, PodState]) -> Place | None:
    """The worst of the pods that are not healthy; None: all are healthy, or their nodes are given up."""
    ailing = [place for place, state in pods.items() if not state.healthy and state.lost is None]
    return min(ailing, key=lambda place: (_rank(pods[place]), place), default=None)


def ailing_since(pods: Mapping[Place, PodState]) -> dict[Place, float]:
    """Since when (seconds since the epoch) each running pod that fails its check has failed it.

    Pods that crash are not among them; the alert about crashes reports those.
    """
    runs = {
        place: state for place, state in pods.items() if state.reality and state.reality.phase == "running"
    }
    return {place: since for place, state in runs.items() if (since := sick_since(state)) is not None}


LONGEST_PATIENCE = 3600.0


def restart_due(state: PodState, counter: int, patience: float) -> float | None:
    """When (seconds since the epoch) its owner restarts a pod in place, because it runs and fails its check
    for ``patience`` seconds (0: never); None: it does not.

    The pod's counter exceeds its owner's, ``counter``, by the restarts that were requested for it alone. Each
    doubles the patience, up to an hour, so that restarts which do not help become rare, whichever farm looks.
    After the pod was healthy for longer than that, the patience starts at its lowest value again. A shorter
    healthy time may be just the start of the pod, during which its check does not count.
    """
    since, seen, intent = sick_since(state), state.reality, state.intent
    if not patience or since is None or seen is None or intent is None or seen.phase != "running":
        return None
    tried = max(0, intent.record.restart - counter)
    longer = max(patience, min(LONGEST_PATIENCE, patience * 2.0 ** min(tried, 12)))
    return since + (patience if since - state.pod.record.at > longer else longer)


def restarts(
    pods: Mapping[Place, PodState], counter: int, patience: float, now: float
) -> tuple[list[Place], float | None]:
    """The pods to restart in place now, and the seconds until the next one is due."""
    due = {
        place: at
        for place, state in pods.items()
        if (at := restart_due(state, counter, patience)) is not None
    }
    later = min((at - now for at in due.values() if at > now), default=None)
    now_due = [place for place, at in due.items() if at <= now]
    return sorted(now_due, key=lambda place: (due[place], place)), later


def why_restarted(places: Iterable[Place], patience: float) -> str:
    """For the audit; empty if none is restarted."""
    count = len(list(places))
    return f"{count_of(count, 'pod')} unhealthy for {patience:g} s (unhealthy_after)" if count else ""


def _rank(state: PodState) -> int:
    seen = state.reality
    if state.absent or not isinstance(seen, Glance):
        return len(_SEVERITY) + (1 if state.absent else 2)
    if seen.phase in _SEVERITY:
        return _SEVERITY.index(seen.phase)
    return len(_SEVERITY) if fails(seen) else len(_SEVERITY) + 2


async def told(client: ConsulClient, keys: Keys, place: Place, pods: Mapping[Place, PodState]) -> str:
    """``2 of 3 pods are not healthy; n1/web: exited with code 1``; the text is the same while the pod
    fails alike.
    """
    count = sum(not state.healthy for state in pods.values())
    text = (
        f"{share(count, len(pods), 'pod')} {'is' if count == 1 else 'are'} not healthy; {place[0]}/{place[1]}"
    )
    state = pods[place]
    if state.absent:
        return f"{text}: its node's agent is absent"
    seen = state.reality
    differs = seen is not None and seen.manifest != state.pod.record.manifest
    if _rank(state) > len(_SEVERITY) and not differs:
        return f"{text}: it is still starting"
    entry = await client.read(keys.reality(*place))
    try:
        said = None if entry is None else codec.decode(Reality, entry.value, entry.key)
    except RecordInvalid:
        return text
    if said is None:
        return text
    if said.manifest != state.pod.record.manifest and not said.reason:
        return f"{text}: it runs {said.manifest[:12]}, expected {state.pod.record.manifest[:12]}"
    return f"{text}: {complaint(said)}"


def complaint(reality: Reality) -> str:
    """What a node reports of a pod that does not serve, without details that differ between tries."""
    if reality.phase in ("backoff", "exited") and reality.exits:
        end = reality.exits[-1]
        return "unhealthy, and restarted for that" if end.unhealthy else ending(end.code)
    return reality.reason or reality.health.reason or f"{reality.phase}, health {reality.health.state}"
