"""Decides the next action for one pod, from its situation and the time. Pure.

The plan must never stop a process that is wanted as it runs, stop one for a start that is not prepared, start
a second process of an instance, or forget an instance whose process may live. Times are monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from farmd.agent.lease import stops_at
from store.manifests import Restart

RESEND_KILL = 1.0
# Within that time a farm reads how an unwanted pod ended, also if it just took the owner over.
TELL_SECONDS = 15.0
TOLD_SECONDS = 2.0
"""How long a leave waits at most until the store knows of it; the store may be away."""
LEFT = "it had already stopped when it was requested again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One pod as the agent sees it now.

    ``running`` is the digest of the live process, empty if there is none. ``startable``: the wanted
    manifest is known and may run here. ``prepared``: all that its start needs is on the node; ``preparing``:
    that is under way, and after a failure tried again at ``prepare_at``. ``restart``: a restart was requested
    since the last start. ``done``: it ended, and its restart policy asks for no other start; ``told_at``:
    when everybody knows of that end. ``hold``:
    nothing is started for now; ``held``: its ports are chosen (R29).
    ``confirmed``: a proven answer that was asked for since its lease was over last says that it is wanted.
    ``leaves``: it has something to do before a stop signal; ``leaving``: it does that now; ``left``: that is
    over (R39). ``stopping`` is the time of the stop signal, ``killed`` that of the last SIGKILL.
    ``ailing_at``: when a process that goes on failing its check is restarted, for the reason ``ailment``.
    ``stale`` says why a start brings it files that it lacks.
    ``isolated`` is the time without contact to the store; ``halting``: the agent was told to stop its
    workloads and end.
    """

    wanted: bool
    sha: str
    running: str = ""
    startable: bool = True
    prepared: bool = True
    preparing: bool = False
    prepare_at: float = -math.inf
    restart: bool = False
    done: bool = False
    told_at: float = -math.inf
    hold: bool = False
    held: bool = False
    busy: bool = False
    not_before: float = -math.inf
    leaves: bool = False
    leaving: bool = False
    left: bool = False
    stopping: float | None = None
    killed: float | None = None
    ailing_at: float = math.inf
    ailment: str = ""
    grace: float = 10.0
    stop_after: float = 0.0
    isolated: float = 0.0
    confirmed: bool = True
    halting: bool = False
    stale: str = ""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get ready what the start of the wanted manifest needs, while the former process still serves."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Choose and tell the ports of the first start, which waits."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the wanted manifest."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Let the pod leave, and stop it after that; ``why`` is for people. ``ailing``: it fails its check."""

    why: str
    ailing: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Send the stop signal to the whole group; ``why`` is for people. ``ailing``: it fails its check."""

    why: str
    ailing: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the whole group."""


@dataclass(frozen=True, slots=True)
class Forget:
    """The pod does not run and is not wanted: remove all its files."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until``; infinity if only an event can change that."""

    until: float = math.inf


Action = Prepare | Hold | Start | Leave | Stop | Kill | Forget | Wait


def decide(pod: Situation, now: float) -> Action:
    """The next action for one pod."""
    if pod.busy:
        return Wait()
    if pod.running:
        return _running(pod, now)
    if pod.halting:
        return Wait()
    if pod.wanted and (pod.done or not pod.startable or not _may_begin(pod)):
        return Wait()
    if now < pod.not_before:
        return Wait(pod.not_before)
    if not pod.wanted:
        # Who removed it may not know yet that it ended by itself before that.
        return Wait(pod.told_at) if pod.done and now < pod.told_at else Forget()
    if not pod.prepared:
        return _prepare(pod, now)
    if pod.hold:
        return Wait() if pod.held else Hold()
    return Start()


def _prepare(pod: Situation, now: float) -> Action:
    if pod.preparing or now < pod.prepare_at:
        return Wait(math.inf if pod.preparing else pod.prepare_at)
    return Prepare()


def _running(pod: Situation, now: float) -> Action:
    if pod.killed is not None:
        # A process in an uninterruptible call outlives a SIGKILL for a while: send it again.
        return Kill() if now >= pod.killed + RESEND_KILL else Wait(pod.killed + RESEND_KILL)
    if pod.stopping is not None:
        deadline = pod.stopping + pod.grace
        return Kill() if now >= deadline else Wait(deadline)
    why = reason_to_stop(pod)
    ails = not why and now >= pod.ailing_at and _may_restart(pod)
    why = why or (pod.ailment if ails else LEFT if pod.leaving else "")
    if why:
        at_once = pod.halting or cut_off(pod)
        starts_again = pod.wanted and not at_once
        waits = pod.leaving and not (pod.left or at_once)
        if starts_again and not pod.prepared and (waits or not pod.leaving):
            return _prepare(pod, now)
        if waits:
            return Wait(_cut_off_at(pod, now))
        return Leave(why, ails) if pod.leaves and not (pod.leaving or at_once) else Stop(why, ails)
    # What is due and may not be done yet waits for an event.
    return Wait(min(_cut_off_at(pod, now), pod.ailing_at if pod.ailing_at > now else math.inf))


def _cut_off_at(pod: Situation, now: float) -> float:
    return now + pod.stop_after - pod.isolated if pod.stop_after > 0 else math.inf


def reason_to_stop(pod: Situation) -> str:
    """Why a live process must be stopped; empty if it must not."""
    if pod.halting:
        return "the agent is stopping its workloads"
    if not pod.wanted:
        return "no longer wanted"
    if cut_off(pod):
        return f"out of contact with the store for {pod.stop_after:g} s (stop_after)"
    if pod.startable and pod.sha != pod.running:
        return "replaced by another manifest"
    if pod.startable and pod.restart:
        return "a restart was requested"
    return pod.stale if pod.stale and _may_restart(pod) else ""


def _may_restart(pod: Situation) -> bool:
    """Whether a start may follow if the process is ended now; else one that ails is better than none."""
    return pod.startable and not pod.hold and _may_begin(pod)


def _may_begin(pod: Situation) -> bool:
    """Whether the pod's lease lets it start: farms may have placed it elsewhere once that was over (R27)."""
    if pod.stop_after <= 0:
        return True
    return pod.confirmed and pod.isolated < stops_at(pod.stop_after, pod.grace)


def cut_off(pod: Situation) -> bool:
    """Whether the pod's ``stop_after`` without contact to the store is over (R27)."""
    return pod.stop_after > 0 and pod.isolated >= pod.stop_after


def failures_after(restart: Restart, failures: int, ran: float) -> int:
    """Ends in a row, including this one; a run of ``restart.reset`` seconds resets the count."""
    return 1 if ran >= restart.reset else failures + 1


def ends_for_good(restart: Restart, code: int) -> bool:
    """Whether no start follows this end."""
    return restart.policy == "never" or (restart.policy == "on-failure" and code == 0)


def backoff(restart: Restart, failures: int) -> float:
    """Seconds until the next start after that many ends in a row."""
    if failures < 1:
        return 0.0
    # The exponent is bounded, because 2**1024 overflows a float.
    return min(restart.maximum, restart.initial * 2.0 ** min(failures - 1, 60))
