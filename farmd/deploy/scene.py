"""The present state of some services, read once from the store, for previews and commands. It decides
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from farmd.commands import fleet
from farmd.commands.mutation import Call
from farmd.deploy import owners
from farmd.deploy.manifest import spec_of
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.operations import ServicePod
from farmd.deploy.operations import StandingService as Standing
from farmd.deploy.spec import ServiceSpec
from farmd.overview import PodRow
from scheduler.model import FleetView
from store import codec, manifests
from store.deployments import KIND, Deployment, DeploymentState, DeploymentStatus, halted
from store.entry import Stored
from store.errors import Conflict, InputInvalid, Locked, NotFound, RecordInvalid
from store.manifests import Manifest
from store.nodes import NodeVolume
from store.operations import Operation
from store.services import Service, ServiceStore, Version
from store.status import StatusStore
from store.times import rfc3339
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
        """Whether a service's record is gone, so that only the owner of its pods still names it."""
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
    return found | await owners.services(call, {*names} - found.keys(), project)


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


# Who holds a service while a deployment changes it, and who may take it over.


def refuse_foreign(scene: Scene, names: Collection[str], project: str) -> None:
    """Refuse services of others: of another project, or that people made for owners of their own.

    Raises:
        Conflict: naming the first of them.
    """
    for name in sorted(names):
        stored = scene.records.get(name)
        if stored is None or (stored.record.project == project and stored.record.mode):
            continue
        record = stored.record
        if not record.mode:
            whose = f"service/{name} serves for other owners; rename this one"
        elif record.version is None and not record.active and scene.holder(name) is None:
            continue  # a deployment that ended early left it, and nothing stands of it
        else:
            whose = f"belongs to {_project(record.project)}; rename it"
        raise Conflict(
            f"services.{name}: {whose}, or set x-farmd.prefix at the top of the file",
            field=f"services.{name}",
        )


def unless_held(call: Call, scene: Scene, names: Sequence[str]) -> None:
    """Refuse services that another deployment changes now, unless it waits for a person or is superseded.

    Raises:
        Locked: naming the holder, since when, and how far it is.
        InputInvalid: it is forced without a reason.
    """
    if call.force and not call.reason:
        raise InputInvalid("reason: missing, expected why force is needed (--reason)", field="reason")
    for name in names:
        held = scene.holder(name)
        if held is None or (not held.stored.record.draft and takes_over(call, held)):
            continue
        record = held.stored.record
        raise Locked(
            f"service {name!r} is changed by {told(held)}",
            holder=f"deployments/{record.id}",
            since=rfc3339(record.at),
            progress=progress(held),
            hint="it is submitted right now; try again"
            if record.draft
            else f"--supersede takes it over; farmctl deployment status {record.name} shows its progress",
        )


def takes_over(call: Call, held: Holding) -> bool:
    """Whether a caller may take services over from a deployment that is under way."""
    return held.resting or call.force or call.supersede


def taken_over(scene: Scene, names: Collection[str]) -> dict[str, Holding]:
    """The services that come from other deployments, with these."""
    held = {name: scene.holder(name) for name in sorted(names)}
    return {name: holder for name, holder in held.items() if holder is not None}


def superseding(call: Call, scene: Scene, ident: str, names: Collection[str]) -> tuple[Operation, ...]:
    """What takes services from their deployments, which leave them as they are then."""
    taken = taken_over(scene, names)
    store = DEPLOYMENT.records(call.client, call.keys)
    found = []
    for holder in {held.stored.record.id: held for held in taken.values()}.values():
        record = holder.stored.record
        goals = [
            replace(goal, superseded=ident) if goal.name in taken and not goal.superseded else goal
            for goal in record.goals
        ]
        found.append(store.replace(holder.stored, replace(record, goals=goals)))
    return tuple(found)


def told(held: Holding) -> str:
    """A deployment for people: who began it and when, and how far it is."""
    record = held.stored.record
    return (
        f"deployment {record.name} of {record.by or 'unknown'} since {rfc3339(record.at)}: {progress(held)}"
    )


def progress(held: Holding) -> str:
    """How far a deployment is, in words."""
    if held.stored.record.draft:
        return "draft"
    if held.state is not None and held.state.halted:
        return f"halted: {held.state.halted}"
    if held.stored.record.ask != "run":
        return {"pause": "paused", "rollback": "rolling back"}[held.stored.record.ask]
    return held.status.progress if held.status is not None else "no farm has reported yet"


def _project(name: str) -> str:
    return f"project {name}" if name else "no project"
