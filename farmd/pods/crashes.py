"""Counts how often the pods of one owner end, and decides when an owner is in a crash loop: for its alert.

A pod that fails may be moved, and its next agent counts from 0. So the worker of the owner counts, over all
nodes. What must never break: an incident does not end while a pod is about to fail again. It ends once every
pod stayed up for twice the longest pause between the last ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise

from farmd.farm.alerts import Incidents
from farmd.pods.state import PodState
from store.pods import Place
from store.reality import Glance

CRASH_LOOP_SECONDS = 60.0
"""A pod that fails for so long is in a crash loop."""
CRASHES = 3
"""A pod that ended this often within ``WINDOW_SECONDS`` is in one, too, however long it runs in between."""
WINDOW_SECONDS = 3600.0
# An owner that was claimed with an open incident: how often its pods ended before is not known.
INHERITED_SECONDS = 600.0
# The ends that are remembered.
KEPT = 32

_DOWN = ("backoff", "failed", "exited")
_UP = ("running", "held", "done", "stopping")
_NOTHING: dict[Place, int] = {}


class Crashes:
    """The unexpected ends of one owner's pods, as far as this worker has seen them.

    A farm has one per owner, so those without crashes share their parts to save memory.
    """

    __slots__ = ("_counts", "_ends", "_least", "_manifest")

    def __init__(self) -> None:
        self._manifest = ""
        self._counts: dict[Place, int] | None = None
        self._ends: tuple[tuple[float, Place], ...] = ()
        self._least = CRASH_LOOP_SECONDS

    def look(self, manifest: str, pods: Mapping[Place, PodState], now: float, *, told: bool) -> None:
        """Count the ends since the last look. ``told``: the incident is open. Counting starts again with
        another manifest, and when pods come after there were none.
        """
        first, before = self._counts is None, self._counts or _NOTHING
        if first and told:
            self._least = INHERITED_SECONDS
        elif manifest != self._manifest or not pods:
            self._ends, self._least = (), CRASH_LOOP_SECONDS
        self._manifest = manifest
        counts = {
            place: before.get(place, 0) if (count := _count(state)) is None else count
            for place, state in pods.items()
        }
        if not first:
            # At most one for each pod and look: an agent that was silent may tell of many old ones.
            ended = [(now, place) for place, count in counts.items() if count > before.get(place, 0)]
            recent = [each for each in self._ends if now - each[0] < WINDOW_SECONDS]
            self._ends = (*recent, *ended)[-KEPT:]
        self._counts = {place: count for place, count in counts.items() if count} or _NOTHING

    def repeated(self, pods: Mapping[Place, PodState], now: float) -> bool:
        """Whether a pod ends too often, those counted in whose place it may be, and is about to end again."""
        if not self._ends or now - self._ends[-1][0] >= self.quiet:
            return False
        gone = sum(place not in pods for _, place in self._ends)
        here = [place for _, place in self._ends if place in pods]
        return gone + max(map(here.count, here), default=0) >= CRASHES

    @property
    def quiet(self) -> float:
        """How long all pods must stay up until the crash loop is over, in seconds."""
        last = [at for at, _ in self._ends[-CRASHES:]]
        longest = max((after - before for before, after in pairwise(last)), default=0.0)
        return min(max(2 * longest, self._least if longest == 0 else CRASH_LOOP_SECONDS), WINDOW_SECONDS)

    def __str__(self) -> str:
        """Such as ``pods ended 4 times within 20 min, the last one on n1``."""
        if not self._ends:
            return ""
        minutes = (self._ends[-1][0] - self._ends[0][0]) / 60
        times = len(self._ends)
        return f"pods ended {times} times within {minutes:.0f} min, the last one on {self._ends[-1][1][0]}"


def _count(state: PodState) -> int | None:
    """How often a pod ended so far; None: not known now. An agent counts an end when it starts the pod
    again.
    """
    seen = state.reality
    if not isinstance(seen, Glance) or seen.phase == "starting":
        return None
    return seen.restarts + (seen.phase in _DOWN and seen.since > 0)


async def tell_of_crashes(
    incidents: Incidents,
    key: str,
    tell: Callable[[], Awaitable[None]],
    crashes: Crashes,
    pods: Mapping[Place, PodState],
    min_healthy_time: float,
    now: float,
) -> float | None:
    """Keep the alert ``key``, which ``tell`` fires, open while a pod is in a crash loop.

    Returns the seconds until time alone changes whether there is a crash loop; None: time does not.
    """
    since = [at for state in pods.values() if (at := failing_since(state)) is not None]
    fails = any(now - at >= CRASH_LOOP_SECONDS for at in since) or crashes.repeated(pods, now)
    left = _until_over(pods, min_healthy_time, crashes.quiet)
    if fails and left != 0:
        await tell()
    elif key in incidents and left == 0:
        await incidents.end(key)
    if key in incidents:
        return left
    return min(since) + CRASH_LOOP_SECONDS - now if since else None


def _until_over(pods: Mapping[Place, PodState], min_healthy_time: float, quiet: float) -> float | None:
    """Seconds until all pods stayed up for so long; None: one is down, or just starts."""
    known = [state for state in pods.values() if not state.absent and state.lost is None]
    if any(state.reality is None or state.reality.phase not in _UP for state in known):
        return None
    up = [min_healthy_time - state.settles_in for state in known]
    return max(0.0, quiet - min(up, default=quiet))


def failing_since(state: PodState) -> float | None:
    """Since when (seconds since the epoch) a pod that is down has ended or failed to start in a row; or
    None.
    """
    seen = state.reality
    if state.unknown or state.lost is not None or not isinstance(seen, Glance):
        return None
    return seen.since if seen.phase in _DOWN and seen.since > 0 else None
