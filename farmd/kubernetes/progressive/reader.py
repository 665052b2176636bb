"""The facts about one service, from the watches: it decides nothing.

An object of the same name that belongs to another service, or to one that was deleted, is none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from farmd.kubernetes.progressive.ground import Ground
from farmd.kubernetes.progressive.items import Where, owner
from farmd.kubernetes.progressive.model import Knative
from farmd.kubernetes.progressive.objects import Meta, Pod, Service
from farmd.kubernetes.progressive.settings import load_config_from_service
from farmd.kubernetes.store import Object
from farmd.rollout.revisions import REVISION_LABEL

T = TypeVar("T", bound=Object)


async def read(
    where: Where, item: str, ground: Ground, *, frozen: str | None, risen: float, now: float
) -> tuple[Knative, tuple[str, ...]]:
    """The service at one moment, and what is wrong with its annotations."""
    watches, key = where.watches, (where.namespace, where.name)
    service, record = await _service(where, item), watches.orchestrators.store.get(*key)
    there = service.metadata.uid == item and not service.metadata.terminating
    ours = record if record is not None and owner(record) == item else None
    settings, wrong = load_config_from_service(ground.settings, service)
    return Knative(
        service=service,
        settings=settings,
        configuration=_of(watches.configurations.of(*key), item).get(where.name),
        route=_of(watches.routes.of(*key), item).get(where.name),
        revisions=_staying(watches.revisions.of(*key)) if there else {},
        autoscalers=_staying(watches.autoscalers.of(*key)) if there else {},
        spas=_of(watches.spas.of(*key), ours.metadata.uid) if ours is not None else {},
        pods=_by_revision(watches.pods.of(*key)),
        orchestrator=ours,
        bounds_on_revisions=ground.bounds_on_revisions,
        frozen=frozen,
        risen=risen,
        now=now,
    ), wrong


async def _service(where: Where, item: str) -> Service:
    """The service; one that lost its label is asked for, and of one that is gone only its name is left."""
    found = where.watches.services.store.get(where.namespace, where.name)
    if found is None or found.metadata.uid != item:
        found = await where.watches.any_services.get(where.namespace, where.name, item)
    if found is None or found.metadata.uid != item:
        return Service(metadata=Meta(name=where.name, namespace=where.namespace))
    return found


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
