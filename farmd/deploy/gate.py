"""Whether a pod that a deployment placed has proven itself, has failed, or needs more time: pure.

What must never break: a pod of an absent agent never fails (R21), and nothing is proven by an older start, by
another manifest or by a report from before the intent (R22).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from farmd.pods.state import PodState
from farmd.work.context import Context
from store import codec
from store.deployments import GoalState
from store.errors import RecordInvalid
from store.manifests import Manifest
from store.pods import Place
from store.reality import Reality
from store.services import Hook, Version

Verdict = Literal["proven", "unproven", "failed"]

ENDS = 2
REFUSED_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a service asks of its new pods.

    ``monitor``: seconds in which a check may fail, or in which a pod without a check must go on running.
    ``deadline``: seconds until a pod that proves nothing has failed. ``once``: it ends by itself, and well.
    """

    monitor: float = 5.0
    deadline: float = 600.0
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A pod with this manifest, as its farm sees it. Reports of other starts do not count.

    ``available``: as ``farmd.pods.state`` has it. ``absent``: its agent is. ``critical``: its check fails.
    ``ends`` counts how often it ended, the last time with ``code``; ``done``: it is not started again.
    ``refused``: why its agent does not start it, for ``refused_for`` seconds. ``waited``: for how many
    seconds this farm has watched it with its agent present, so a farm that takes over only waits longer.
    """

    available: bool = False
    absent: bool = False
    critical: bool = False
    ends: int = 0
    code: int = 0
    done: bool = False
    refused: str = ""
    refused_for: float = 0.0
    waited: float = 0.0


def judge(gate: Gate, attempt: Attempt) -> tuple[Verdict, str]:
    """The verdict, and why a pod has failed or does not start."""
    if attempt.absent:
        return "unproven", ""
    if attempt.done and attempt.code == 0 and gate.once:
        return "proven", ""
    if attempt.done:
        return "failed", f"exited with code {attempt.code}"
    if attempt.available:
        return "proven", ""
    if attempt.ends >= ENDS and attempt.refused and not attempt.code:
        return "failed", f"failed to start {attempt.ends} times: {attempt.refused}"
    if attempt.ends >= ENDS:
        return "failed", f"ended {attempt.ends} times, the last time with code {attempt.code}"
    if attempt.refused and attempt.refused_for >= REFUSED_SECONDS:
        return "failed", f"its agent refuses it: {attempt.refused}"
    if attempt.critical and attempt.waited > gate.monitor:
        return "failed", f"its check still fails after {attempt.waited:.0f} s"
    if attempt.waited > gate.deadline:
        return "failed", f"not healthy within {gate.deadline:g} s"
    return "unproven", attempt.refused


# How new pods come along: what the gate judges of them, and for how long this claim has watched each.
#
# Only time in which a pod's agent is present counts (R21). A farm that takes a deployment over begins anew,
# so it waits longer and never shorter; so does everybody after a person's word to go on.

MONITOR_SECONDS = 5.0
_DOWN = ("backoff", "failed", "exited")


def gate_of(manifest: Manifest, version: Version) -> Gate:
    """What a version asks of its new pods."""
    update = version.update
    return Gate(
        monitor=MONITOR_SECONDS if update.monitor is None else update.monitor,
        deadline=update.deadline,
        once=manifest.restart.policy != "always",
    )


def min_healthy_time(manifest: Manifest, version: Version) -> float:
    """Seconds that its pods must be healthy: without a check at least as long as new ones are watched."""
    watched = 0.0 if manifest.health is not None else gate_of(manifest, version).monitor
    return max(version.update.min_healthy_time, watched)


@dataclass(slots=True)
class _Watch:
    """One pod: ``key`` tells it from an earlier pod at its place. ``ends`` are the ends that do not count."""

    key: tuple[int, int]
    seen: float
    waited: float = 0.0
    refused: float = 0.0
    ends: int = -1
    absent: bool = False
    refusing: bool = False
    proven: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason; ``after``: seconds until time alone changes it, None: it does not. ``age``:
    for how long it has been proven.
    """

    verdict: Verdict
    reason: str = ""
    after: float | None = None
    age: float = 0.0


class Attempts:
    """The new pods of one deployment under one claim."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[Place, _Watch] = {}
        self._read: dict[Place, tuple[int, Reality | None]] = {}

    def keep(self, places: Collection[Place]) -> None:
        """Forget all other pods."""
        self._known = {place: self._known[place] for place in places if place in self._known}
        self._read = {place: self._read[place] for place in places if place in self._read}

    async def judged(self, place: Place, state: PodState, gate: Gate, resumed: int) -> Judgement:
        """The verdict on one pod; ``resumed`` counts people's words to go on."""
        attempt = await self.attempt(place, state, resumed, available=state.available)
        verdict, reason = judge(gate, attempt)
        watch = self._known[place]
        if verdict != "proven":
            watch.proven = None
            return Judgement(verdict, reason, after(gate, attempt, state) if verdict == "unproven" else None)
        watch.proven = watch.seen if watch.proven is None else watch.proven
        return Judgement(verdict, age=watch.seen - watch.proven)

    async def attempt(self, place: Place, state: PodState, resumed: int, *, available: bool) -> Attempt:
        """What the gate judges of a pod; where it is ``available`` nothing else is read."""
        said = None if available else await self._said(place)
        acted = state.intent is not None and said is not None and said.intent >= state.intent.index
        own = said if acted and said is not None and said.manifest == state.pod.record.manifest else None
        refused = _refusal(said, state)
        watch = self._watched(place, state, resumed, bool(refused))
        ends = 0 if own is None else own.restarts + (own.phase in _DOWN)
        if watch.ends < 0:
            watch.ends = ends if resumed else 0
        done = own is not None and own.phase == "done"
        return Attempt(
            available=available,
            absent=state.absent,
            critical=own is not None and own.phase == "running" and own.health.state == "critical",
            ends=max(0, ends - watch.ends),
            code=_code(own),
            done=done,
            refused=refused,
            refused_for=watch.refused,
            waited=watch.waited,
        )

    def _watched(self, place: Place, state: PodState, resumed: int, refusing: bool) -> _Watch:
        now, key = self._context.clock.mono(), (state.pod.index, resumed)
        watch = self._known.get(place)
        if watch is None or watch.key != key:
            watch = self._known[place] = _Watch(key, now)
        if not (watch.absent or state.absent):
            watch.waited += now - watch.seen
            watch.refused += now - watch.seen if watch.refusing else 0.0
        if not refusing:
            watch.refused = 0.0
        watch.seen, watch.absent, watch.refusing = now, state.absent, refusing
        return watch

    async def _said(self, place: Place) -> Reality | None:
        """The agent's full report of a pod; caches keep only a part."""
        context, key = self._context, self._context.keys.reality(*place)
        stored = context.caches.reality.get(key)
        if stored is None:
            return None
        known = self._read.get(place)
        if known is None or known[0] != stored.index:
            entry = await context.client.read(key)
            try:
                said = None if entry is None else codec.decode(Reality, entry.value, entry.key)
            except RecordInvalid:
                said = None  # its agent writes it again
            known = self._read[place] = (entry.modify_index if entry is not None else 0, said)
        return known[1]


def _code(said: Reality | None) -> int:
    """The exit code of its last end; of one that did not end well never 0."""
    if said is None:
        return 0
    code = said.exits[-1].code if said.exits else 0
    return code or int(said.phase == "done" and said.health.state != "passing")


def _refusal(said: Reality | None, state: PodState) -> str:
    """Why its agent does not start what it should; empty: it does, or has not seen that yet."""
    if said is None or state.intent is None:
        return ""
    if said.refused >= state.intent.index or (said.phase == "failed" and said.intent >= state.intent.index):
        return said.reason or "it does not start"
    return ""


def after(gate: Gate, attempt: Attempt, state: PodState) -> float | None:
    """Seconds until the next of the gate's times is over."""
    if attempt.absent:
        return None
    left = [gate.deadline - attempt.waited]
    if state.healthy:
        left.append(state.settles_in)
    if attempt.critical:
        left.append(gate.monitor - attempt.waited)
    if attempt.refused:
        left.append(REFUSED_SECONDS - attempt.refused_for)
    return min((each for each in left if each > 0), default=0.0)


# The hook of a service: one pod, which runs a command to its end before the first pod changes.
#
# What must never break: a hook is started once and never again. Its place is noted in the transaction that
# places it, so who takes the deployment over waits for that very run; where nobody can know how it ended,
# it failed.


@dataclass(frozen=True, slots=True)
class HookSight:
    """How far a hook is; ``after``: seconds until time alone changes that."""

    status: Literal["", "running", "done", "failed"] = ""
    failure: str = ""
    after: float | None = None


def place_of(state: GoalState | None) -> Place | None:
    """Where the hook was placed; None: it was not."""
    if state is None or not state.hook:
        return None
    node, _, instance = state.hook.partition("/")
    return node, instance


async def seen(
    state: GoalState | None, pods: Mapping[Place, PodState], hook: Hook | None, watches: Attempts
) -> HookSight:
    """How far the hook of a service is."""
    place = place_of(state)
    if state is None or place is None or hook is None:
        return HookSight()
    if state.hooked:
        return HookSight("done")
    pod = pods.get(place)
    if pod is None:
        return HookSight("failed", "how it ended is unknown: its pod is gone")
    if pod.lost is not None:
        return HookSight("failed", f"how it ended is unknown: {place[0]} is lost")
    attempt = await watches.attempt(place, pod, 0, available=False)
    gate = Gate(monitor=hook.timeout, deadline=hook.timeout, once=True)
    verdict, reason = judge(gate, attempt)
    if verdict == "proven":
        return HookSight("done")
    if verdict == "unproven":
        return HookSight("running", after=after(gate, attempt, pod))
    late = attempt.waited > hook.timeout and not (attempt.done or attempt.refused)
    return HookSight("failed", f"it did not end within {hook.timeout:g} s" if late else reason)


def leftover(status: str, state: GoalState | None, pods: Mapping[Place, PodState]) -> tuple[Place, ...]:
    """Pods of hooks that the deployment no longer waits for. The pod of a failed hook stays until its service
    is rolled back, so that people can read its log.
    """
    waits = state is not None and not state.back and status in ("running", "failed")
    return tuple(sorted(place for place in pods if not (waits and place == place_of(state))))
