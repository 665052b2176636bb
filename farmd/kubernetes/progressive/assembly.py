"""The facts about one service, put together from objects of its name: pure, for farms and people.

An object of the same name that belongs to another service, or to one that was deleted, is none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from farmd.kubernetes.progressive.model import Knative
from farmd.kubernetes.progressive.objects import (
    Configuration,
    Orchestrator,
    Pod,
    PodAutoscaler,
    Revision,
    Route,
    Service,
    StageAutoscaler,
)
from farmd.kubernetes.store import Object
from farmd.rollout.revisions import REVISION_LABEL

T = TypeVar("T", bound=Object)


class Parts(NamedTuple):
    """The objects of a service's name and labels, by their own names."""

    configurations: Mapping[str, Configuration]
    routes: Mapping[str, Route]
    revisions: Mapping[str, Revision]
    autoscalers: Mapping[str, PodAutoscaler]
    spas: Mapping[str, StageAutoscaler]
    pods: Mapping[str, Pod]
    record: Orchestrator | None


def named(objects: Iterable[T]) -> dict[str, T]:
    """Objects by their names."""
    return {each.metadata.name: each for each in objects}


def assembled(service: Service, uid: str, parts: Parts, **more: Any) -> Knative:
    """The service of that uid at one moment; ``more`` are the other fields of ``Knative``."""
    name = service.metadata.name
    there = service.metadata.uid == uid and not service.metadata.terminating
    ours = next(iter(_of(named([parts.record] if parts.record is not None else []), uid).values()), None)
    return Knative(
        service=service,
        configuration=_of(parts.configurations, uid).get(name),
        route=_of(parts.routes, uid).get(name),
        revisions=_staying(parts.revisions) if there else {},
        autoscalers=_staying(parts.autoscalers) if there else {},
        spas=_of(parts.spas, ours.metadata.uid) if ours is not None else {},
        pods=_by_revision(parts.pods),
        orchestrator=ours,
        **more,
    )


def _of(found: Mapping[str, T], uid: str) -> dict[str, T]:
    """The objects whose controller has that uid."""
    return {
        name: each
        for name, each in found.items()
        if each.metadata.controller is not None and each.metadata.controller.uid == uid
    }


def _staying(found: Mapping[str, T]) -> dict[str, T]:
    """The objects that are not deleted."""
    return {name: each for name, each in found.items() if not getattr(each.metadata, "terminating", False)}


def _by_revision(pods: Mapping[str, Pod]) -> dict[str, tuple[Pod, ...]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods.values():
        found.setdefault(pod.metadata.labels.get(REVISION_LABEL, ""), []).append(pod)
    return {name: tuple(sorted(each, key=lambda pod: pod.metadata.name)) for name, each in found.items()}
