"""The facts and the plan of the rollout of one Knative Service.

``Snapshot`` is everything at one moment, from watches. A ``Plan`` is one change of the record, or writes to
other objects in their order; never both, so that a farm that takes over finds one of them done or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from farmd.kubernetes.knative.objects import (
    FINALIZER,
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
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.store import Key, Object
from farmd.rollout.staging import REVISION_LABEL, SERVICE_LABEL
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
    ``ownerless``: a record of the service's name is there, and is nobody's. ``finals``: the final bounds of
    revisions, which follow from all of these; ``bounds.final`` derives each once per snapshot.
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
    finals: dict[str, Bounds] = field(default_factory=dict, init=False, repr=False, compare=False)

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
    """The last commands of people and other tools, so that a repetition differs from something new.

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


# The facts about one service, put together from objects of its name: pure, for farms and people.
#
# An object of the same name that belongs to another service, or to one that was deleted, is none of it.

T = TypeVar("T", bound=Object)
M = TypeVar("M", Revision, PodAutoscaler)


class ServiceObjects(NamedTuple):
    """The objects of a service's name and labels, by their own names."""

    configurations: Mapping[str, Configuration]
    routes: Mapping[str, KnativeRoute]
    revisions: Mapping[str, Revision]
    autoscalers: Mapping[str, PodAutoscaler]
    spas: Mapping[str, StageAutoscaler]
    pods: Mapping[str, RevisionPod]


def service_of(found: Object) -> Key:
    """The service that an object belongs to; a service itself bears no label of its own."""
    meta = found.metadata
    return meta.namespace, meta.labels.get(SERVICE_LABEL, meta.name)


def owner(record: Orchestrator) -> str:
    """The item that a record belongs to: the uid of the service that it is about. One that lost its service
    and holds bounds is an item of its own once it is deleted, so that it can go; empty: it is nobody's.
    """
    meta = record.metadata
    if meta.controller is not None:
        return meta.controller.uid
    return meta.uid if meta.terminating and FINALIZER in meta.finalizers else ""


def assembled(
    service: KnativeService, uid: str, record: Orchestrator | None, parts: ServiceObjects, **more: Any
) -> Snapshot:
    """The item of that uid at one moment; ``more`` are the other fields of ``Knative``. Revisions of a record
    that lost its service stay, and get their bounds back.
    """
    name = service.metadata.name
    ours = record if record is not None and owner(record) == uid else None
    there = service.metadata.uid == uid and not service.metadata.terminating
    there = there or (ours is not None and ours.metadata.uid == uid)
    return Snapshot(
        service=service,
        configuration=_of(parts.configurations, uid).get(name),
        route=_of(parts.routes, uid).get(name),
        revisions=_staying(parts.revisions) if there else {},
        autoscalers=_staying(parts.autoscalers) if there else {},
        spas=_of(parts.spas, ours.metadata.uid) if ours is not None else {},
        pods=_by_revision(parts.pods),
        orchestrator=ours,
        ownerless=record is not None and record.metadata.controller is None,
        **more,
    )


def _of(found: Mapping[str, T], uid: str) -> dict[str, T]:
    """The objects whose controller has that uid."""
    return {name: each for name, each in found.items() if _controlled(each, uid)}


def _controlled(found: Object, uid: str) -> bool:
    controller = found.metadata.controller
    return controller is not None and controller.uid == uid


def _staying(found: Mapping[str, M]) -> dict[str, M]:
    """The objects that are not deleted."""
    return {name: each for name, each in found.items() if not each.metadata.terminating}


def _by_revision(pods: Mapping[str, RevisionPod]) -> dict[str, tuple[RevisionPod, ...]]:
    found: dict[str, list[RevisionPod]] = {}
    for pod in pods.values():
        found.setdefault(pod.metadata.labels.get(REVISION_LABEL, ""), []).append(pod)
    return {name: tuple(sorted(each, key=lambda pod: pod.metadata.name)) for name, each in found.items()}
