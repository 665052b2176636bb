"""The facts about one service, from the watches: it decides nothing."""

from __future__ import annotations

from farmd.kubernetes.progressive.assembly import ServiceObjects, assembled
from farmd.kubernetes.progressive.ground import Ground
from farmd.kubernetes.progressive.items import Where
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import KnativeService, Meta
from farmd.kubernetes.progressive.settings import load_config_from_service


async def read(
    where: Where, item: str, ground: Ground, *, frozen: str | None, risen: float, now: float
) -> tuple[Snapshot, tuple[str, ...]]:
    """The service at one moment, and what is wrong with its annotations."""
    watches, key = where.watches, (where.namespace, where.name)
    service = await _service(where, item)
    settings, wrong = load_config_from_service(ground.settings, service)
    parts = ServiceObjects(
        watches.configurations.of(*key),
        watches.routes.of(*key),
        watches.revisions.of(*key),
        watches.autoscalers.of(*key),
        watches.spas.of(*key),
        watches.pods.of(*key),
    )
    found = assembled(
        service,
        item,
        watches.orchestrators.store.get(*key),
        parts,
        settings=settings,
        bounds_on_revisions=ground.bounds_on_revisions,
        frozen=frozen,
        risen=risen,
        now=now,
    )
    return found, wrong


async def _service(where: Where, item: str) -> KnativeService:
    """The service; one that lost its label is asked for, and of one that is gone only its name is left."""
    found = where.watches.services.store.get(where.namespace, where.name)
    if found is None or found.metadata.uid != item:
        found = await where.watches.any_services.get(where.namespace, where.name, item)
    if found is None or found.metadata.uid != item:
        return KnativeService(metadata=Meta(name=where.name, namespace=where.namespace))
    return found
