"""What the rollout of one Knative Service is decided from, and what the decision says.

``Snapshot`` is everything at one moment, from watches. A ``Plan`` is one change of the record, or writes to
other objects in their order; never both, so that a farm that takes over finds one of them done or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from farmd.kubernetes.progressive.objects import (
    Configuration,
    KnativeRoute,
    KnativeService,
    Orchestrator,
    OrchestratorSpec,
    OrchestratorStatus,
    PodAutoscaler,
    Revision,
    RevisionPod,
    StageAutoscaler,
    TrafficTarget,
    routed,
)
from farmd.kubernetes.progressive.settings import Settings
from farmd.work.model import Blocked


class Bounds(NamedTuple):
    """The least and the most pods of a revision; None: not bounded. A most of 0 is no bound, either."""

    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One service and all that belongs to it, by the names of its revisions.

    ``bounds_on_revisions``: whether this version of Knative hands bounds of a revision on to its autoscaler
    and nowhere else; otherwise they are written on the autoscaler. ``frozen`` is the evidence of a freeze.
    ``risen``: when this worker last saw a newcomer grow, ``now`` (both in seconds since the epoch).
    ``ownerless``: a record of the service's name is there, and is nobody's.
    """

    service: KnativeService
    settings: Settings = field(default_factory=Settings)
    configuration: Configuration | None = None
    route: KnativeRoute | None = None
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    autoscalers: Mapping[str, PodAutoscaler] = field(default_factory=dict)
    spas: Mapping[str, StageAutoscaler] = field(default_factory=dict)
    pods: Mapping[str, tuple[RevisionPod, ...]] = field(default_factory=dict)
    orchestrator: Orchestrator | None = None
    ownerless: bool = False
    bounds_on_revisions: bool = True
    frozen: str | None = None
    risen: float = 0.0
    now: float = 0.0

    @property
    def record(self) -> Orchestrator:
        """Its orchestrator, which is there."""
        assert self.orchestrator is not None
        return self.orchestrator

    @property
    def newest(self) -> str:
        """The revision that the last template became; empty while Knative has not made it."""
        configuration = self.configuration
        if configuration is None:
            return ""
        status = configuration.status
        observed = status.observed_generation == configuration.metadata.generation
        return status.latest_created_revision_name if observed else ""

    @property
    def routed(self) -> Mapping[str, int]:
        """The shares that the route shows, by revision; none where there is no route."""
        return routed(self.route.status.traffic) if self.route is not None else {}

    @property
    def tagged(self) -> set[str]:
        """The revisions that the route shows for a tag alone; it reaches them, too."""
        entries = self.route.status.traffic if self.route is not None else ()
        return {each.revision_name for each in entries if each.percent is None and each.tag}

    def ready(self, name: str) -> bool:
        """Whether a revision is there, and traffic may go to it."""
        return name in self.revisions and self.revisions[name].ready


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What people and others said last, by which a repetition is told from news.

    ``revert``, ``promote`` and ``retry`` are the last values of these annotations. ``word`` is traffic that
    another manager wrote, ``revision`` the latest one then, and ``times`` when it was written.
    """

    revert: str = ""
    promote: str = ""
    retry: str = ""
    word: str = ""
    revision: str = ""
    times: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """What people changed since the record was written, and the record that follows from it.

    ``annotations`` of None are removed.
    """

    action: Literal["none", "create", "word", "retarget", "back", "release", "blocked"] = "none"
    spec: OrchestratorSpec | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One change of the orchestrator: its spec, annotations and finalizer in one request, or its status.

    ``finalizer`` None leaves it as it is. ``action`` and ``reason`` are for the audit.
    """

    action: str
    reason: str = ""
    spec: OrchestratorSpec | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    finalizer: bool | None = None
    status: OrchestratorStatus | None = None


@dataclass(frozen=True, slots=True)
class StageBounds:
    """Let a StagePodAutoscaler have these bounds, and the final ones on record; it is made where absent."""

    revision: str
    bounds: Bounds
    final: Bounds


@dataclass(frozen=True, slots=True)
class RevisionBounds:
    """Let a revision have these bounds, which its autoscaler reads."""

    revision: str
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Traffic:
    """Let the service have this traffic."""

    entries: tuple[TrafficTarget, ...]


@dataclass(frozen=True, slots=True)
class Reap:
    """Delete a pod at once, whose time to end is over, or whose room is needed."""

    pod: RevisionPod


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete the StagePodAutoscaler of a revision that is gone."""

    revision: str


Write = StageBounds | RevisionBounds | Traffic | Reap | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now: a turn, or writes in this order; else what is waited for."""

    turn: Turn | None = None
    writes: tuple[Write, ...] = ()
    blocked: Blocked | None = None
    waiting: str = ""
    after: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but statuses."""
        return self.turn is None and not self.writes

    @property
    def ends(self) -> bool:
        """The end is a turn of its own."""
        return False
