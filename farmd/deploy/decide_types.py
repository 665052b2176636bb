"""What a decision is made from, and made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from farmd.deploy.model import ServiceSpec
from farmd.deploy.operations import (
    Operation,
)
from farmd.deploy.standing import StandingService
from scheduler.cluster import ClusterState, Machines
from store.pods import Place

Turn = Literal["", "back", "pause", "skip", "release"]


Condition = Literal["started", "healthy", "completed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceGoal:
    """One service of a deployment, and how far it is.

    ``spec``: what it should be; None: gone. ``previous``: what it was, None: it was not there. ``service``
    holds its pods, those of this turn as ``mine``. ``taken``: it waits for no other service any more.
    ``started``: how many pods were healthy when it was taken. ``hook`` is the state of its hook,
    ``hook_place`` where that runs. ``altered``: pods whose intent was lost or altered. ``held``: pods may
    come, and none may go. ``rests``: the pods that came last have not been there for the delay, so no further
    one is replaced. ``machines``: as for a plan.
    """

    service: StandingService
    spec: ServiceSpec | None
    previous: ServiceSpec | None = None
    back: bool = False
    taken: bool = False
    released: bool = False
    started: int = 0
    hook: Literal["", "running", "done", "failed"] = ""
    hook_failure: str = ""
    hook_place: Place | None = None
    recreate: bool = False
    after: Mapping[str, Condition] = field(default_factory=dict)
    altered: tuple[Place, ...] = ()
    held: bool = False
    rests: bool = False
    machines: Machines | None = None

    @property
    def wanted(self) -> ServiceSpec | None:
        """The spec that the service should have on its way forward or back; None: it goes."""
        return self.previous if self.back else self.spec

    @property
    def unproven(self) -> int:
        """How many pods of this turn have yet to prove themselves."""
        return sum(pod.mine and not pod.proven for pod in self.service.containers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A deployment at one moment. ``met``: conditions of services that are none of its goals."""

    goals: Sequence[ServiceGoal]
    state: ClusterState
    paused: bool = False
    met: frozenset[tuple[str, Condition]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStep:
    """What to do of one service now: changes of pods, or a turn; else what it waits for (``short``: room).

    ``failed``: the pod because of which it turns.
    """

    service: str
    operations: tuple[Operation, ...] = ()
    repairs: tuple[Place, ...] = ()
    turn: Turn = ""
    reason: str = ""
    failed: Place | None = None
    short: bool = False
