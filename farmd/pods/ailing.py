"""Finds the worst pod of an owner and a crash loop among its pods, for the status and the alerts.

Decisions use the short realities in memory; exits and reasons are read from the store, for the worst pod
alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from farmd.farm.incidents import Incidents
from farmd.pods.state import PodState
from store import codec
from store.consul.client import ConsulClient
from store.errors import RecordInvalid
from store.keys import Keys
from store.pods import Place
from store.reality import Glance, Reality, ending, fails
from store.words import share

CRASH_LOOP_SECONDS = 60.0
"""A pod that fails for so long is in a crash loop; the loop is over when all pods stayed up for so long."""

# The worst first.
_SEVERITY = ("failed", "backoff", "exited")


def worst(pods: Mapping[Place, PodState]) -> Place | None:
    """The worst of the pods that are not healthy; None: all are healthy, or their nodes are given up."""
    ailing = [place for place, state in pods.items() if not state.healthy and state.lost is None]
    return min(ailing, key=lambda place: (_rank(pods[place]), place), default=None)


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
        return f"{text}: it runs {said.manifest[:12]}, and should run {state.pod.record.manifest[:12]}"
    return f"{text}: {complaint(said)}"


def complaint(reality: Reality) -> str:
    """What a node reports of a pod that does not serve, without details that differ between tries."""
    if reality.phase in ("backoff", "exited") and reality.exits:
        return ending(reality.exits[-1].code)
    return reality.reason or reality.health.reason or f"{reality.phase}, health {reality.health.state}"


async def tell_of_crashes(
    incidents: Incidents,
    key: str,
    tell: Callable[[], Awaitable[None]],
    pods: Mapping[Place, PodState],
    min_healthy_time: float,
    now: float,
) -> float | None:
    """Keep the alert ``key``, which ``tell`` fires, open while a pod is in a crash loop.

    Returns the seconds until time alone changes whether there is a crash loop; None: time does not.
    """
    since = [at for state in pods.values() if (at := failing_since(state)) is not None]
    if any(now - at >= CRASH_LOOP_SECONDS for at in since):
        await tell()
        return None
    if since:
        return min(since) + CRASH_LOOP_SECONDS - now
    if key not in incidents:
        return None
    up = [min_healthy_time - state.settles_in for state in pods.values() if not state.down]
    left = CRASH_LOOP_SECONDS - min(up, default=CRASH_LOOP_SECONDS)
    if left > 0:
        return left
    await incidents.end(key)
    return None


def failing_since(state: PodState) -> float | None:
    """Since when (seconds since the epoch) a pod that is down has ended or failed to start in a row; or
    None.
    """
    seen = state.reality
    if state.unknown or state.lost is not None or not isinstance(seen, Glance):
        return None
    return seen.since if seen.phase in ("backoff", "failed", "exited") and seen.since > 0 else None
