"""What the scheduler is asked for the pods of a service."""

from __future__ import annotations

from msgspec.structs import replace

from farmd.deploy.manifest import manifest_of, placement_of
from farmd.deploy.model import ServiceSpec
from scheduler.model import PlacementRequest
from scheduler.volumes import Volume
from store import selectors

ALL = selectors.parse("")


def request_of(spec: ServiceSpec, owner: str, *, near: bool = True) -> PlacementRequest:
    """The request for one more pod of a service. It leaves out volumes, which the plan itself places, and
    without ``near`` also the pods with which it stays.
    """
    most = spec.placement.max_per_node or spec.replicas
    placement = placement_of(spec)
    return PlacementRequest(
        manifest=manifest_of(spec, placement if near else replace(placement, pod_affinity=[])),
        selector=ALL,
        owner=owner,
        numbered=True,
        replicas_per_node=max(1, most),
    )


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
