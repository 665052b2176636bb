"""A deployment as its worker sees it in one cycle: values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farmd.deploy.decide_types import ServiceGoal, Snapshot
from farmd.deploy.project import ProjectPlan
from farmd.pods.state import PodState
from store import deployments
from store.deployments import Deployment, DeploymentState, GoalState, halted
from store.entry import Stored
from store.manifests import Manifest
from store.pods import Place
from store.services import Version

BACK = ".back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """One service of a deployment. ``version`` is what it should be on this turn, None: gone; ``manifest`` is
    that of its pods then.

    ``owner`` is the owner of its pods as the caches have it. ``busy``: why its pods may not change yet.
    ``hooks`` are the pods of hooks, ``leftover`` those that nobody waits for. ``goal`` is what the next steps
    are decided by.
    """

    said: deployments.Goal
    state: GoalState | None
    version: Version | None
    manifest: Manifest | None
    owner: Stored[Any] | None
    pods: Mapping[Place, PodState]
    hooks: Mapping[Place, PodState]
    goal: ServiceGoal
    leftover: tuple[Place, ...] = ()
    busy: str = ""

    @property
    def family(self) -> str:
        return self.said.owner.partition("/")[0]

    @property
    def owner_id(self) -> str:
        return self.said.owner.partition("/")[2]

    @property
    def over(self) -> bool:
        """Whether this deployment has nothing to do with it any more."""
        return bool(self.said.superseded) or (self.state is not None and self.state.phase == "released")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A deployment and its world. ``sights`` by the service's name.

    ``planned`` is the plan of all of it while nothing is taken yet, ``unplanned`` why there is none.
    ``frozen`` is the evidence of a freeze that holds it, ``idle`` how long its record has not changed, and
    ``after`` the seconds until time alone changes what is decided.
    """

    stored: Stored[Deployment]
    state: DeploymentState
    sights: Mapping[str, ServiceFacts] = field(default_factory=dict)
    shot: Snapshot | None = None
    planned: ProjectPlan | None = None
    unplanned: str = ""
    frozen: str | None = None
    idle: float = 0.0
    after: float | None = None

    @property
    def paused(self) -> bool:
        """Whether it waits for a person."""
        return paused(self.stored.record, self.state)


def mark(deployment: str, state: GoalState | None) -> str:
    """The label of the pods that a deployment places on its present turn."""
    return deployment + BACK if state is not None and state.back else deployment


def turned(said: deployments.Goal, state: GoalState | None) -> Version | None:
    """What a service should be on its present turn; None: gone."""
    return said.previous if state is not None and state.back else said.wanted


def paused(record: Deployment, state: DeploymentState) -> bool:
    """Whether it waits for a person."""
    return record.ask == "pause" or bool(halted(record, state))
