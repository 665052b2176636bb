"""What stands of some services, read once from the store: for previews. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farmd.commands import fleet
from farmd.deploy.manifest import spec_of
from farmd.deploy.model import ServiceSpec
from farmd.deploy.strategy import Container, Service
from farmd.overview import PodRow
from scheduler.model import FleetView
from store import manifests
from store.errors import NotFound, RecordInvalid
from store.keys import Keys
from store.nodes import NodeStore, NodeVolume
from store.services import Mode, ServiceStore, Version

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

ENDED = frozenset({"exited", "failed", "done"})
OWNER = "svc-"
"""How the owner of a service's pods is called, before the service's name."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The machines, their volumes, and the services that stand on them.

    ``taken`` are the names of services that people made for owners of their own.
    """

    view: FleetView
    volumes: dict[str, dict[str, NodeVolume]]
    services: dict[str, Service]
    taken: frozenset[str] = frozenset()


async def standing(client: ConsulClient, keys: Keys, names: Collection[str]) -> Standing:
    """All machines, and the services of these names that have pods."""
    view, rows = await fleet.read(client, keys)
    listing = await NodeStore(client, keys).list()
    volumes = {name: dict(node.record.volumes) for name, node in listing.items.items() if node.record.volumes}
    known: dict[str, ServiceSpec | None] = {}
    found: dict[str, list[PodRow]] = {}
    for row in rows:
        name = row.owner_name.rpartition("/")[2].removeprefix(OWNER)
        if row.owner_name.rpartition("/")[2] == f"{OWNER}{name}" and name in names:
            found.setdefault(name, []).append(row)
            if row.manifest not in known:
                known[row.manifest] = await _spec(client, keys, row)
    services = {name: _service(name, pods, known) for name, pods in found.items()}
    records = await ServiceStore(client, keys).list()
    return Standing(view, volumes, services, frozenset(each.record.name for each in records.items))


def _service(name: str, rows: list[PodRow], known: dict[str, ServiceSpec | None]) -> Service:
    containers = tuple(
        Container(
            place=(row.node, row.instance),
            spec=known[row.manifest],
            running=row.phase not in ENDED or row.healthy,
            done=row.phase == "done",
            failing=row.health == "critical",
        )
        for row in rows
    )
    return Service(id=rows[0].owner, name=name, mode=_mode(rows[0]), containers=containers)


def _mode(row: PodRow) -> Mode:
    """Only the owners of replicated services are listed without their noun."""
    return "global" if "/" in row.owner_name else "replicated"


async def _spec(client: ConsulClient, keys: Keys, row: PodRow) -> ServiceSpec | None:
    """The spec that a pod was placed for; None if its manifest cannot be read."""
    try:
        manifest = await manifests.read(client, keys, row.manifest)
    except (NotFound, RecordInvalid):
        return None
    return spec_of(manifest, Version(manifest=row.manifest, mode=_mode(row)))
