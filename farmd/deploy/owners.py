"""The owner of a service's pods as a deployment makes, takes and hands it back: pure (R14)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from farmd.commands.mutation import Call
from farmd.deploy.gate import min_healthy_time
from farmd.deploy.noun import owner_noun
from farmd.kinds import KINDS, title
from farmd.work.hands import passed
from store.deployments import DEPLOYED, KIND, PROJECT_LABEL, SERVICE_LABEL, Goal
from store.entry import Stored
from store.families import FAMILIES, owners
from store.features import needed_of_farm
from store.manifests import Manifest
from store.rcs import NUMBERED
from store.services import KIND as SERVICES
from store.services import Mode, Service, Version, reference

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
    """The fields of an owner that a deployment takes: only the deployment changes its pods from then on."""
    return {"managed_by": reference(KIND, deployment), **passed(record, taken=True)}


# Finds services whose record is gone, by the owner of their pods, which bears their mark (``part_of``).
#
# A deployment of such a name takes the owner back with its pods. What only the record told is lost: the
# project, settings of updates, the hook and the history. What must never break: an owner whose service
# exists, or that bears no mark, is another one's.


async def services(call: Call, names: Collection[str], project: str) -> dict[str, Stored[Service]]:
    """The services of these names that have no record, rebuilt from the owners of their pods; their index is
    0.

    Raises:
        RecordInvalid: the name or the record of an owner does not decode.
    """
    found: dict[str, Stored[Service]] = {}
    for family in (each.name for each in owners() if not KINDS[each.name].ended) if names else ():
        prefix = call.keys.name(family, owner_name(""))
        there = {key.removeprefix(prefix) for key in (await call.client.keys(prefix)).items}
        for name in sorted(there.intersection(names)):
            stored, _ = await owner_noun(family).records(call.client, call.keys).named(owner_name(name))
            if stored is None or stored.record.deleting:
                continue
            of, _, ident = stored.record.part_of.partition("/")
            key = call.keys.record(SERVICES, ident)
            if of == SERVICES and await call.client.read(key, mode="consistent") is None:
                found[name] = Stored(key, _service(ident, name, project, family, stored.record), 0, b"")
    return found


def told(stored: Stored[Service]) -> str:
    """One line for people: what happens to such a service."""
    family = stored.record.active[0].partition("/")[0]
    owner = title(family, owner_name(stored.record.name))
    return f"! the record of {stored.record.name} was lost: takes {owner} back with its pods, as they are"


def _service(ident: str, name: str, project: str, family: str, owner: Any) -> Service:
    mode: Mode = "global" if KINDS[family].per_node else "replicated"
    replicas, per_node = getattr(owner, "replicas_desired", 1), getattr(owner, "replicas_per_node", 1)
    kept = {name: getattr(owner, name) for name in ("on_lost", "unhealthy_after") if hasattr(owner, name)}
    version = Version(
        manifest=owner.manifest,
        mode=mode,
        replicas=replicas,
        max_per_node=0 if per_node == max(1, replicas) else per_node,
        **kept,
    )
    active = [reference(family, owner.id)]
    return Service(id=ident, name=name, project=project, mode=mode, version=version, active=active)
