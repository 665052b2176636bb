"""The facts about one service, put together from objects of its name: pure, for farms and people.

An object of the same name that belongs to another service, or to one that was deleted, is none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import (
    FINALIZER,
    Configuration,
    KnativeRoute,
    KnativeService,
    Orchestrator,
    PodAutoscaler,
    Revision,
    RevisionPod,
    StageAutoscaler,
)
from farmd.kubernetes.store import Key, Object
from farmd.rollout.staging import REVISION_LABEL, SERVICE_LABEL

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
