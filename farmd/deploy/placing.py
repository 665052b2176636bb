"""What the scheduler is asked for the pods of a service."""

from __future__ import annotations

from farmd.deploy.model import ServiceSpec
from scheduler.model import Request
from scheduler.volumes import Volume
from store import selectors
from store.manifests import Constraint, Manifest, Placement

ALL = selectors.parse("")


def amounts_of(spec: ServiceSpec) -> dict[str, float]:
    """What one pod takes of its machine: what it reserves, and each of its published ports."""
    limits = spec.container.resources
    amounts = {"cpu": limits.cpu_reservation, "memory": float(limits.memory_reservation)}
    ports = {f"port/{port.published}/{port.protocol}": 1.0 for port in spec.ports if port.published}
    return {name: amount for name, amount in amounts.items() if amount > 0} | ports


def placement_of(spec: ServiceSpec) -> Placement:
    """The rules for its machines as those of a manifest; a named machine is one of a node's label."""
    said = spec.placement
    machines = [Constraint("node", "in", said.machines)] if said.machines else []
    return Placement(
        constraints=[*said.constraints, *machines],
        affinity=said.affinity,
        anti_affinity=said.anti_affinity,
        spread=said.spread,
        tolerations=said.tolerations,
    )


def request_of(spec: ServiceSpec, owner: str) -> Request:
    """One more pod of it, by its placement alone: volumes, room and ports are the plan's own to judge."""
    manifest = Manifest(id=spec.name, command=[spec.container.image], placement=placement_of(spec))
    return Request(manifest=manifest, selector=ALL, owner=owner, numbered=True)


def volumes_of(spec: ServiceSpec, external: frozenset[str] = frozenset()) -> list[Volume]:
    """The named volumes that its pods mount, as the scheduler of volumes reads them."""
    found = []
    for each in spec.mounted():
        options, name = each.volume, each.volume_name
        driver = options.driver if options is not None else None
        found.append(
            Volume(
                name=name,
                driver=None if driver is None else driver.name,
                options={} if driver is None else driver.options,
                labels={} if options is None else options.labels,
                no_copy=options is not None and options.no_copy,
                subpath="" if options is None else options.subpath,
                external=name in external,
            )
        )
    return found
