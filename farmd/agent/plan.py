"""What to do next about one pod: pure, a table of its situation and the clock.

What it must never do: stop a process that is wanted as it runs, start one beside another, or forget
an instance whose process may live. ``None`` for "no time limit"; times are monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from store.manifests import Restart

RESEND_KILL = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One pod as the agent sees it now.

    ``running`` is the digest of the live process, empty if there is none. ``startable``: the wanted
    manifest is known and may run here. ``stopping`` is when the stop signal was sent, ``killed`` when
    SIGKILL last was. ``isolated`` is how long the store has been out of reach; ``halting``: the agent
    was told to stop its workloads and leave.
    """

    wanted: bool
    sha: str
    running: str = ""
    startable: bool = True
    busy: bool = False
    not_before: float = -math.inf
    stopping: float | None = None
    killed: float | None = None
    grace: float = 10.0
    stop_after: float = 0.0
    isolated: float = 0.0
    halting: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Start the wanted manifest."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Send the stop signal to the whole group; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the whole group."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing runs and nothing is wanted: remove every trace."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until``; infinity when only an event can change that."""

    until: float = math.inf


Action = Start | Stop | Kill | Forget | Wait


def decide(pod: Situation, now: float) -> Action:
    """The next action for one pod."""
    if pod.busy:
        return Wait()
    if pod.running:
        return _running(pod, now)
    if pod.halting:
        return Wait()
    if pod.wanted and (not pod.startable or _cut_off(pod)):
        return Wait()
    if now < pod.not_before:
        return Wait(pod.not_before)
    return Start() if pod.wanted else Forget()


def _running(pod: Situation, now: float) -> Action:
    if pod.killed is not None:
        # A process in an uninterruptible call outlives a SIGKILL for a while: ask again.
        return Kill() if now >= pod.killed + RESEND_KILL else Wait(pod.killed + RESEND_KILL)
    if pod.stopping is not None:
        deadline = pod.stopping + pod.grace
        return Kill() if now >= deadline else Wait(deadline)
    why = reason_to_stop(pod)
    if why:
        return Stop(why)
    return Wait(now + pod.stop_after - pod.isolated) if pod.stop_after > 0 else Wait()


def reason_to_stop(pod: Situation) -> str:
    """Why a live process must go; empty if it must not."""
    if pod.halting:
        return "the agent stops its workloads"
    if not pod.wanted:
        return "no longer wanted"
    if _cut_off(pod):
        return f"out of contact with the store for {pod.stop_after:g} s (stop_after)"
    if pod.startable and pod.sha != pod.running:
        return "replaced by another manifest"
    return ""


def _cut_off(pod: Situation) -> bool:
    """R27's one exception: a pod may ask to be stopped when its node is cut off."""
    return pod.stop_after > 0 and pod.isolated >= pod.stop_after


def failures_after(restart: Restart, failures: int, ran: float) -> int:
    """Ends in a row, this one counted; a run of ``restart.reset`` seconds wipes the slate."""
    return 1 if ran >= restart.reset else failures + 1


def backoff(restart: Restart, failures: int) -> float:
    """Seconds until the next start after that many ends in a row."""
    if failures < 1:
        return 0.0
    # The exponent is bounded: 2**1024 is no float any more.
    return min(restart.maximum, restart.initial * 2.0 ** min(failures - 1, 60))
