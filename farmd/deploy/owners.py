"""The owner of a service's pods as a deployment makes, takes and hands it back: pure (R14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farmd.deploy.attempts import min_healthy_time
from store.deployments import DEPLOYED, KIND, PROJECT_LABEL, SERVICE_LABEL, Goal
from store.families import FAMILIES
from store.features import needed_of_farm
from store.manifests import Manifest
from store.rcs import NUMBERED
from store.services import KIND as SERVICES
from store.services import Version, reference

OWNER_PREFIX = "svc-"
NEEDS = (NUMBERED, DEPLOYED)
"""What a farm must know to own the pods of a service (R11)."""


def owner_name(service: str) -> str:
    """What the owner of a service's pods is called."""
    return f"{OWNER_PREFIX}{service}"


def labels(goal: Goal, project: str) -> dict[str, str]:
    """The labels of a service's pods."""
    return {SERVICE_LABEL: goal.service} | ({PROJECT_LABEL: project} if project else {})


def wishes(goal: Goal, version: Version, manifest: Manifest, project: str) -> dict[str, Any]:
    """The fields of an owner that follow from what its service should be; no family has all of them."""
    return {
        "manifest": version.manifest,
        "pod_id": manifest.id,
        "pod_labels": labels(goal, project),
        "needs": [*NEEDS, *needed_of_farm(manifest)],
        "min_healthy_time": min_healthy_time(manifest, version),
        "numbered": True,
        "part_of": reference(SERVICES, goal.service),
        "replicas_desired": version.replicas,
        "replicas_per_node": version.max_per_node or max(1, version.replicas),
        "max_unavailable": version.update.parallelism,
        "strategy": "dynamic",
        "on_lost": version.on_lost,
        "unhealthy_after": version.unhealthy_after,
    }


def made(goal: Goal, fields: Mapping[str, Any], selected: Mapping[str, str], now: float) -> Any:
    """A new owner, not taken yet; ``selected`` are the labels by which farms choose it."""
    family, _, ident = goal.owner.partition("/")
    kind = FAMILIES[family].record
    assert kind is not None
    own = {name: value for name, value in fields.items() if name in kind.__struct_fields__}
    return kind(id=ident, name=owner_name(goal.name), labels=dict(selected), created=now, **own)


def taken(record: Any, deployment: str) -> dict[str, Any]:
    """The fields of an owner whose pods a deployment changes alone from then on."""
    by = reference(KIND, deployment)
    return {"managed_by": by, "taken": True, "hands": record.hands + (not record.taken)}


def handed_back(record: Any) -> dict[str, Any]:
    """The fields of an owner whose own worker keeps its pods again; what it needs stays (R11)."""
    return {"managed_by": "", "taken": False, "hands": record.hands + record.taken}
