"""The hook of a service: one pod, which runs a command to its end before the first pod changes.

What must never break: a hook is started once and never again. Its place is noted in the transaction that
places it, so who takes the deployment over waits for that very run; where nobody can know how it ended, it
failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from farmd.deploy.attempts import Attempts, after
from farmd.deploy.gate import Gate, judge
from farmd.pods.state import PodState
from store.deployments import GoalState
from store.pods import Place
from store.services import Hook


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
    """Pods of hooks that nobody waits for any more. That of a failed one stays until its service goes back:
    people read its log.
    """
    waits = state is not None and not state.back and status in ("running", "failed")
    return tuple(sorted(place for place in pods if not (waits and place == place_of(state))))
