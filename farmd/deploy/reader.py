"""What stands of some services, read once from the store, for previews and commands. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from farmd.commands import fleet
from farmd.commands.mutation import Call
from farmd.deploy import lost
from farmd.deploy.manifest import spec_of
from farmd.deploy.model import ServiceSpec
from farmd.deploy.standing import ServicePod
from farmd.deploy.standing import StandingService as Standing
from farmd.overview import PodRow
from scheduler.model import FleetView
from store import codec, manifests
from store.deployments import KIND, Deployment, DeploymentState, DeploymentStatus, halted
from store.entry import Stored
from store.errors import NotFound, RecordInvalid
from store.manifests import Manifest
from store.nodes import NodeVolume
from store.services import Service, ServiceStore, Version
from store.status import StatusStore
from store.work import Work

ENDED = frozenset({"exited", "failed", "done"})


@dataclass(frozen=True, slots=True)
class Holding:
    """A deployment under way, and how far it is."""

    stored: Stored[Deployment]
    state: DeploymentState | None = None
    status: DeploymentStatus | None = None

    @property
    def resting(self) -> bool:
        """Whether it waits for a person, so that another one may take its services over."""
        record = self.stored.record
        return record.ask == "pause" or bool(halted(record, self.state))

    def heir(self, name: str) -> str:
        """The id of the deployment that took a service over from this one; empty: none did."""
        return next((goal.superseded for goal in self.stored.record.goals if goal.name == name), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The machines, their volumes, and services by name, with all others of the project.

    ``records`` have those that no deployment has made yet, and those that are ``lost``; ``services`` those
    that have pods or a version.
    ``released`` is what each was released as. ``holding``: the deployments that hold some of them, by id.
    """

    view: FleetView
    volumes: Mapping[str, Mapping[str, NodeVolume]]
    records: Mapping[str, Stored[Service]] = field(default_factory=dict)
    services: Mapping[str, Standing] = field(default_factory=dict)
    released: Mapping[str, ServiceSpec] = field(default_factory=dict)
    holding: Mapping[str, Holding] = field(default_factory=dict)

    def lost(self, name: str) -> bool:
        """Whether a service's record is gone, and only the owner of its pods tells of it."""
        return name in self.records and not self.records[name].index

    def holder(self, name: str) -> Holding | None:
        """The deployment that holds a service, or the last one that took it over from that."""
        stored = self.records.get(name)
        held = self.holding.get(stored.record.deployment) if stored is not None else None
        while held is not None and (heir := self.holding.get(held.heir(name))) is not None:
            held = heir
        return held


async def read(call: Call, names: Collection[str], project: str = "") -> Scene:
    """All machines, the services of these names, and those of the project."""
    records = await services(call, names, project)
    seen = await fleet.read(call.client, call.keys)
    pods: dict[str, list[PodRow]] = {}
    for row in seen.pods:
        pods.setdefault(row.owner, []).append(row)
    deployed = {name: stored.record for name, stored in records.items() if stored.record.mode}
    own = {name: pods.get(owner_of(record), []) for name, record in deployed.items()}
    used = {row.manifest for each in own.values() for row in each}
    known = await _manifests(
        call, used | {each.version.manifest for each in deployed.values() if each.version}
    )
    released = {
        name: spec_of(known[record.version.manifest], record.version)
        for name, record in deployed.items()
        if record.version is not None and record.version.manifest in known
    }
    return Scene(
        view=seen.view(),
        volumes={name: node.record.volumes for name, node in seen.nodes.items.items() if node.record.volumes},
        records=records,
        services={
            name: _standing(record, own[name], known)
            for name, record in deployed.items()
            if own[name] or record.version is not None
        },
        released=released,
        holding=await holding(call, {stored.record.deployment for stored in records.values()}),
    )


async def services(call: Call, names: Collection[str], project: str = "") -> dict[str, Stored[Service]]:
    """The services of these names, and those of the project, by name; of one whose record is gone what the
    owner of its pods tells, with index 0.

    Raises:
        RecordInvalid: one of these names belongs to a record that does not decode.
    """
    listing = await ServiceStore(call.client, call.keys).list()
    found = {
        stored.record.name: stored
        for stored in listing.items
        if stored.record.name in names or (project and stored.record.project == project)
    }
    if listing.broken:  # one of them may bear such a name
        for name in sorted({*names} - found.keys()):
            await ServiceStore(call.client, call.keys).named(name)
    return found | await lost.services(call, {*names} - found.keys(), project)


async def holding(call: Call, deployments: Iterable[str]) -> dict[str, Holding]:
    """Those of these deployments that exist, and those that took services over from them."""
    known: dict[str, Holding] = {}
    wanted = {each for each in deployments if each}
    while wanted:
        found = await asyncio.gather(*(_holding(call, each) for each in sorted(wanted)))
        new = [each for each in found if each is not None]
        known |= {each.stored.record.id: each for each in new}
        heirs = {goal.superseded for each in new for goal in each.stored.record.goals if goal.superseded}
        wanted = heirs - known.keys() - wanted
    return known


async def state_of(call: Call, ident: str) -> DeploymentState | None:
    """How far a deployment is; None: nothing was touched."""
    work = await call.client.read(call.keys.work(KIND, ident))
    return codec.decode(Work, work.value, work.key).deployment if work is not None else None


def owner_of(service: Service) -> str:
    """The id of the owner of a deployed service's pods; empty: it has none yet."""
    return service.active[0].partition("/")[2] if service.active else ""


async def _holding(call: Call, ident: str) -> Holding | None:
    client, keys = call.client, call.keys
    entry = await client.read(keys.record(KIND, ident), mode="consistent")
    if entry is None:
        return None
    return Holding(
        codec.stored(Deployment, entry),
        await state_of(call, ident),
        await StatusStore(client, keys, KIND, DeploymentStatus).get(ident),
    )


def _standing(record: Service, rows: list[PodRow], known: Mapping[str, Manifest]) -> Standing:
    assert record.mode
    plain = Version(manifest="-", mode=record.mode)
    specs: dict[str, ServiceSpec | None] = {}
    for sha in {row.manifest for row in rows}:
        version = record.version
        kept = version if version is not None and version.manifest == sha else plain
        specs[sha] = spec_of(known[sha], kept) if sha in known else None
    containers = tuple(
        ServicePod(
            place=(row.node, row.instance),
            spec=specs[row.manifest],
            running=row.phase not in ENDED or row.healthy,
            done=row.phase == "done",
            failing=row.health == "critical",
        )
        for row in rows
    )
    return Standing(id=owner_of(record), name=record.name, mode=record.mode, containers=containers)


async def _manifests(call: Call, digests: Collection[str]) -> dict[str, Manifest]:
    """The manifests with these digests that can be read."""

    async def one(sha: str) -> Manifest | None:
        try:
            return await manifests.read(call.client, call.keys, sha)
        except (NotFound, RecordInvalid):
            return None  # its pods are replaced

    wanted = sorted(digests)
    found = await asyncio.gather(*map(one, wanted))
    return {sha: each for sha, each in zip(wanted, found, strict=True) if each is not None}
