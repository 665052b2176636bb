"""What machines get ready for the new pods of a deployment, such as images, for those who wait for it.

Only the realities tell that. Farms do not pass it on in the status, which would be written again with each
piece of an image, so whoever waits reads it, now and then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from farmd import overview
from farmd.commands.mutation import Call
from farmd.deploy.noun import owner_noun
from store.deployments import Deployment, DeploymentStatus, Goal
from store.errors import NotFound
from store.words import listed

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
