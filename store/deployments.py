"""Deployments: the wanted versions of several services, and how far a farm has come with them.

The record holds the goal and people's commands. No list of steps is stored, because each cycle plans from
the present state. The worker deletes the record at its end and keeps its own state in
``work/deployments/<id>``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from store.services import Version
from store.status import ItemStatus
from store.times import Time
from store.words import listed

KIND = "deployments"
# What a farm must know (R11) to carry out a deployment, or to own what one manages or a service's owner.
DEPLOYED = "deploy.1"
# The same of a deployment of a service whose file says how it is found in Consul's catalogue.
CATALOG = "deploy.catalog"
# The same where a service sends its output somewhere, or has sealed secrets: an older farm would not see that
# such a service changed.
OUTPUTS = "deploy.outputs"
DEPLOYMENT_LABEL = "deployment"
PROJECT_LABEL = "project"
SERVICE_LABEL = "service_id"
MAX_GOALS = 200
# In the audit record of an end: the places of the pods that failed, with spaces between them.
FAILED = "failed"

Condition = Literal["started", "healthy", "completed"]
Ending = Literal["done", "reverted", "stale", "abandoned"]


class Goal(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One service: ``owner``, as ``<family>/<id>``, is that of its pods, whose id is chosen at the submit.

    ``wanted``: what it should become; None: gone. ``previous``: what it was released as, and goes back to;
    None: it was not there. ``recreate``: also pods that are as wanted are replaced. ``after``: services, by
    name, which must have come so far first. ``superseded``: the id of the deployment that took it over.
    ``restored``: a version that ended well once comes again, whose pods do not run again.
    """

    service: str
    name: str
    owner: str
    wanted: Version | None = None
    previous: Version | None = None
    recreate: bool = False
    after: dict[str, Condition] = {}
    superseded: str = ""
    restored: bool = False


class Deployment(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Services on their way to their goals.

    ``project``: what its services belong to; with ``together`` they stand on one machine. ``external`` are
    volumes that must exist. ``fingerprint`` is the plan that a person saw. ``ask`` is what people say now;
    after a failure that pauses it goes on once ``resumed``, how often they said so, is above its state's.
    ``draft``: the submit is not complete. ``atomic``: one failure turns all goals back. ``at``: seconds since
    the epoch.
    """

    id: str
    name: str
    goals: Annotated[list[Goal], msgspec.Meta(max_length=MAX_GOALS)]
    project: str = ""
    together: bool = False
    external: list[str] = []
    fingerprint: str = ""
    ask: Literal["run", "pause", "rollback"] = "run"
    resumed: Annotated[int, msgspec.Meta(ge=0)] = 0
    draft: bool = False
    atomic: bool = False
    by: str = ""
    reason: str = ""
    at: Time = 0.0
    labels: dict[str, str] = {}
    needs: list[str] = []
    deleting: bool = False


class GoalState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far one goal is; without it nothing was touched.

    ``started``: how many pods were healthy when it was taken. ``completed``: all of them had ended well for
    good, so that on the way back none runs again. ``back``: it goes back, for good, because of ``failure``.
    ``failed`` is the place, as ``<node>/<instance>``, of the pod or the hook that failed; empty: none did.
    ``hook`` is the place of the hook's one run, and ``hooked`` when it ended well. ``since``: when the phase
    began (seconds since the epoch).
    """

    phase: Literal["taken", "released"]
    started: Annotated[int, msgspec.Meta(ge=0)] = 0
    completed: bool = False
    back: bool = False
    failure: str = ""
    failed: str = ""
    hook: str = ""
    hooked: bool = False
    since: Time = 0.0


class DeploymentState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a deployment is; ``goals`` by the id of the service.

    ``begun``: the world was as the person saw it. ``halted``: why it waits for a person's word, which is a
    count of ``resumed`` above this one. ``failed``: the place of the pod or the hook because of which it
    waits.
    """

    begun: bool = False
    goals: dict[str, GoalState] = {}
    halted: str = ""
    failed: str = ""
    resumed: int = 0


def halted(record: Deployment, state: DeploymentState | None) -> str:
    """The failure after which a deployment waits for a person; empty: it does not.

    A request for the way back ends the wait, as long as a goal goes forward.
    """
    if state is None or record.resumed > state.resumed:
        return ""
    turns = record.ask == "rollback" and not all(goal.back for goal in state.goals.values())
    return "" if turns else state.halted


def reasons(told: Iterable[tuple[str, str]]) -> list[str]:
    """``web, db: why`` for each reason of services, which are named together where they have the same one."""
    names: dict[str, list[str]] = {}
    for name, reason in told:
        if reason:
            names.setdefault(reason, []).append(name)
    return [f"{listed(each)}: {reason}" for reason, each in names.items()]


class ServiceProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One goal for people: of ``wanted`` pods so many stand as wanted (``placed``) and have proven
    themselves; ``outdated`` are to be replaced or removed. ``reason``: what it waits for, or why it failed.
    """

    name: str
    phase: str = "waiting"
    back: bool = False
    wanted: int = 0
    placed: int = 0
    proven: int = 0
    outdated: int = 0
    reason: str = ""


class DeploymentStatus(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """The status of a deployment."""

    phase: str = "pending"
    services: tuple[ServiceProgress, ...] = ()

    @property
    def underway(self) -> bool:
        """Whether it has begun."""
        return self.phase not in ("pending", "draft")

    @property
    def progress(self) -> str:
        """The phase, and how many services are over."""
        over = sum(each.phase == "released" for each in self.services)
        return f"{self.phase}, {over} of {len(self.services)} services" if self.services else self.phase
