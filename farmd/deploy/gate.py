"""Whether a pod that a deployment placed has proven itself, has failed, or needs more time: pure.

What must never break: a pod of an absent agent never fails (R21), and nothing is proven by an older start, by
another manifest or by a report from before the intent (R22).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
        return "failed", f"did not start {attempt.ends} times: {attempt.refused}"
    if attempt.ends >= ENDS:
        return "failed", f"ended {attempt.ends} times, the last time with code {attempt.code}"
    if attempt.refused and attempt.refused_for >= REFUSED_SECONDS:
        return "failed", f"its agent refuses it: {attempt.refused}"
    if attempt.critical and attempt.waited > gate.monitor:
        return "failed", f"its check still fails after {attempt.waited:.0f} s"
    if attempt.waited > gate.deadline:
        return "failed", f"not healthy within {gate.deadline:g} s"
    return "unproven", attempt.refused
