"""A deployment as people see it while it lasts: pure."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from farmd import overview
from farmd.commands.mutation import Call
from farmd.deploy.noun import owner_noun
from store.deployments import Deployment, DeploymentStatus, Goal, ServiceProgress, reasons
from store.errors import NotFound
from store.words import listed

# What machines get ready for the new pods of a deployment, such as images, for those who wait for it.
#
# Only the realities tell that. Farms do not pass it on in the status, which would be written again with
# each piece of an image, so whoever waits reads it, now and then.

LOOK_SECONDS = 5.0
SHOWN = 3


class Pulls:
    """Reads once in five seconds at most."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._known: Mapping[str, list[overview.PodRow]] = {}
        self._at = -math.inf

    async def of(
        self, record: Deployment, status: DeploymentStatus | None, *, exact: bool = True
    ) -> dict[str, str]:
        """What is under way for each service, by name: ``m2 pulling 48 of 120 MB``, or ``m2 pulling``."""
        told = status.services if status is not None else ()
        coming = {each.name for each in told if each.phase == "rolling" and each.proven < each.wanted}
        if self._call.clock.mono() >= self._at + LOOK_SECONDS:
            self._at = self._call.clock.mono()
            goals = [goal for goal in record.goals if goal.name in coming]
            rows = await asyncio.gather(*(pods_of(self._call, goal) for goal in goals))
            self._known = {
                goal.name: [row for row in each if row.preparing]
                for goal, each in zip(goals, rows, strict=True)
            }
        return {name: _told(rows, exact) for name, rows in self._known.items() if rows and name in coming}


async def pods_of(call: Call, goal: Goal) -> list[overview.PodRow]:
    """The pods of a service; none while it has no owner of pods."""
    family, _, ident = goal.owner.partition("/")
    try:
        owner = await owner_noun(family).records(call.client, call.keys).get(ident)
    except NotFound:
        return []
    return (await overview.pods(call.client, call.keys, owner.record)).placed


def _told(rows: list[overview.PodRow], exact: bool) -> str:
    """``m1 pulling 48 of 120 MB``: the image is the service's, so it is left out."""
    told = []
    for row in rows:
        what, _, far = row.preparing.partition(": ")
        told.append(f"{row.node} {what.partition(' ')[0]} {far if exact else ''}".rstrip())
    return listed(told, SHOWN)


def services(
    record: Deployment, status: DeploymentStatus | None, doing: Mapping[str, str] | None = None
) -> dict[str, str]:
    """One line of progress per service of a deployment, by name; ``doing`` is what machines do for it now."""
    known: Mapping[str, ServiceProgress] = (
        {each.name: each for each in status.services} if status is not None else {}
    )
    now = doing or {}
    return {goal.name: told(goal, known.get(goal.name), now.get(goal.name, "")) for goal in record.goals}


def lines(
    record: Deployment,
    status: DeploymentStatus | None,
    state: str,
    reason: str,
    doing: Mapping[str, str] | None = None,
) -> list[str]:
    """One line for itself, one a service, and what the whole waits for."""
    found = services(record, status, doing)
    told = drawn(record, found, status.progress if status is not None else state)
    why = besides(status, reason)
    return [*told, f"  {why}"] if why else told


def drawn(record: Deployment, told: Mapping[str, str], state: str) -> list[str]:
    """The lines that show the progress of each service."""
    width = max(map(len, told), default=0)
    return [
        f"deployment {record.name}  {state}",
        *(f"  {name:<{width}}  {text}" for name, text in told.items()),
    ]


def besides(status: DeploymentStatus | None, reason: str) -> str:
    """The reason of the whole, unless it repeats those of its services."""
    known = status.services if status is not None else ()
    said = reasons((each.name, each.reason) for each in known if each.phase != "released")
    return "" if any(reason.startswith(each) for each in said) else reason


def done(goal: Goal, last: str) -> str:
    """The state of a service at the end of a successful deployment; ``last`` is the state that was shown
    before.
    """
    if goal.wanted is None:
        return "removed"
    if goal.wanted.mode == "global":  # the number of machines is not the deployment's
        return last
    return f"{goal.wanted.replicas}/{goal.wanted.replicas} healthy"


def told(goal: Goal, progress: ServiceProgress | None, doing: str = "") -> str:
    """The progress of a service. What machines do for it is shown instead of "waits for its pods"."""
    if goal.superseded:
        return "taken over by another deployment"
    if progress is None:
        return "waiting"
    if doing and not progress.back:
        return f"{_state(goal, progress)}; {doing}"
    reason = f": {progress.reason}" if progress.reason else ""
    return f"{_state(goal, progress)}{reason}"


def _state(goal: Goal, progress: ServiceProgress) -> str:
    gone = (goal.previous if progress.back else goal.wanted) is None
    count = f"{progress.proven}/{progress.wanted} healthy"
    if progress.phase == "released":
        now = "removed" if gone else count
        return f"rolled back, {now}" if progress.back else now
    if progress.phase == "waiting":
        return "waiting"
    left = f", {progress.outdated} to {'remove' if gone else 'change'}" if progress.outdated else ""
    now = f"removing{left}" if gone else f"{count}{left}"
    return f"rolling back, {now}" if progress.back else now
