"""The commands on named volumes: list them, record that a node has one, forget it.

A note says that a volume's data lie on a node, so that its services go there and it is never made anew,
empty, on another node. Nothing here touches data: only the node's engine makes and removes volumes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Mapping

import msgspec

from farmd import overview
from farmd.commands.mutation import Call, Mutation
from farmd.kinds import title
from farmd.nodes.commands import edit, view_of
from store import manifests, operations
from store.deployments import KIND as DEPLOYMENTS
from store.deployments import Deployment
from store.errors import Conflict, NotFound, RecordInvalid
from store.families import owners
from store.named import NamedRecords
from store.nodes import (
    KIND,
    LOCAL,
    NOUN,
    Condition,
    NodeRecords,
    NodeStore,
    NodeVolume,
    claim,
    valid_volume_name,
    with_volume,
)
from store.operations import Operation
from store.services import KIND as SERVICES
from store.services import Service, ServiceStore, reference


class VolumeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A volume of a node. ``service`` is the name of the one that it was made for, its id if that is gone.

    ``state`` is the node's: a volume of a node that is absent or lost is kept all the same.
    """

    name: str
    node: str
    state: str
    driver: str
    options: dict[str, str]
    labels: dict[str, str]
    service: str = ""


async def rows(call: Call) -> tuple[list[VolumeRow], list[str]]:
    """All volumes by name and node, and one line for each record that does not decode."""
    store = NodeStore(call.client, call.keys)
    listing, said = await store.list(), await store.conditions()
    services = {each.id: each.name for each in (await _services(call)).values()}
    found = [
        VolumeRow(
            name=name,
            node=view.name,
            state=overview.node_state(view, lost=said.get(view.name, Condition()).lost_since > 0),
            driver=volume.driver or LOCAL,
            options=volume.options,
            labels=volume.labels,
            service=services.get(volume.service, volume.service),
        )
        for view in listing.items.values()
        for name, volume in view.record.volumes.items()
    ]
    broken = [error.message for error in listing.broken]
    return sorted(found, key=lambda row: (row.name, row.node)), broken


async def create(call: Call, name: str, node: str, volume: NodeVolume, *, beside: bool = False) -> Mutation:
    """Note that a node has a volume; its engine makes it when the first pod that mounts it starts there.

    ``beside``: also where other nodes have one of that name, each with its own data.

    Raises:
        InputInvalid: a bad name. NotFound: no such node. Locked: somebody holds its mutation lock.
        Conflict: it is there and differs; another node has it; the node has too many; or somebody makes it.
    """
    standing = await call.client.read(call.keys.name(KIND, valid_volume_name(name)), mode="consistent")
    having, view = await _having(call, name), await view_of(call, node)
    known = view.record.volumes.get(name)
    if known is not None and (known.driver or LOCAL, known.options) != (
        volume.driver or LOCAL,
        volume.options,
    ):
        raise Conflict(
            f"{NOUN} {name!r} is on {node} with another driver or other options", id=name, node=node
        )
    others = sorted(having.keys() - {node})
    if others and known is None and not beside:
        raise Conflict(
            f"{NOUN} {name!r} is on {', '.join(others)}",
            id=name,
            hint="use another name; with --beside each node has its own, as global services need",
        )
    record = view.record if known is not None else with_volume(view.record, name, volume)
    made = await edit(call, view, record, f"{NOUN}.create")
    index = standing.modify_index if standing is not None and having else 0
    return _of_volume(made, name, node, (claim(call.keys, name, node, index),))


async def delete(call: Call, name: str, node: str = "") -> Mutation:
    """Forget that a node has a volume; the data stay there.

    Raises:
        NotFound: no node, or not this one, has it. Locked: somebody holds the node's mutation lock.
        Conflict: several nodes have it and none was named; or something mounts it, unless the node is lost
            and another has it.
    """
    standing = await call.client.read(call.keys.name(KIND, valid_volume_name(name)), mode="consistent")
    having = await _having(call, name)
    where = ", ".join(having)
    if not having or (node and node not in having):
        text = (
            f"{NOUN} {name!r} does not exist"
            if not having
            else f"{node!r} has no {NOUN} {name!r}, {where} has"
        )
        raise NotFound(text, kind=KIND, id=name)
    if not node and len(having) > 1:
        raise Conflict(f"{NOUN} {name!r} is on {where}", id=name, hint="name one: --node NODE")
    view = having[node or where]
    others = sorted(having.keys() - {view.name})
    await _refuse_mounted(call, name, view, others)
    left = {each: volume for each, volume in view.record.volumes.items() if each != name}
    gone = await edit(call, view, msgspec.structs.replace(view.record, volumes=left), f"{NOUN}.delete")
    change = dataclasses.replace(gone.change, destructive=True, details=(_data(name, view),))
    freed = () if standing is None else (operations.delete_cas(standing.key, standing.modify_index),)
    if others:
        index = standing.modify_index if standing is not None else 0
        freed = (claim(call.keys, name, others[0], index),)
    return _of_volume(dataclasses.replace(gone, change=change), name, view.name, freed)


async def _refuse_mounted(call: Call, name: str, view: NodeRecords, others: list[str]) -> None:
    """Refuse to forget what anything mounts, unless the node is lost and others have it."""
    lost = (await NodeStore(call.client, call.keys).condition(view.name)).lost_since > 0
    if (lost and others) or not (users := await _users(call, name)):
        return
    way = f"; {view.name} is lost: farmctl {NOUN} create {name} --beside --node NODE where the data is now"
    raise Conflict(
        f"{NOUN} {name!r} is mounted by {', '.join(users)}",
        id=name,
        mounted_by=users,
        hint=f"change or delete what mounts it first{way if lost else ''}",
    )


def _of_volume(mutation: Mutation, name: str, node: str, more: tuple[Operation, ...]) -> Mutation:
    """The change of a node's record as one of its volume, with the write of the volume's name."""
    details = (f"on {node}", *mutation.change.details)
    change = dataclasses.replace(mutation.change, object=f"{NOUN}/{name}", details=details)
    operations = (*mutation.operations, *more) if mutation.needed else ()
    return dataclasses.replace(mutation, change=change, operations=operations)


def _data(name: str, view: NodeRecords) -> str:
    volume = view.record.volumes[name]
    if (volume.driver or LOCAL) != LOCAL:
        return f"its data stays where driver {volume.driver} keeps it"
    return f"its data stays on {view.name}: podman volume rm {name} (or docker volume rm) there removes them"


async def _having(call: Call, name: str) -> dict[str, NodeRecords]:
    """The nodes that have it, by name.

    Raises:
        RecordInvalid: the record of a node does not decode, which may have it.
    """
    listing = await NodeStore(call.client, call.keys).list()
    tree = call.keys.tree("nodes")
    for error in listing.broken:
        if str(error.fields["key"]).startswith(tree):
            raise error
    return {view.name: view for view in listing.items.values() if name in view.record.volumes}


async def _users(call: Call, name: str) -> list[str]:
    """Services and owners of pods whose manifests mount it, as people write them."""
    wanted = await _manifests(call)
    mounted = await asyncio.gather(*(_mounted(call, sha) for sha in wanted))
    found = [users for users, names in zip(wanted.values(), mounted, strict=True) if name in names]
    return sorted(set().union(*found))


async def _mounted(call: Call, sha: str) -> set[str]:
    try:
        mounts = (await manifests.read(call.client, call.keys, sha)).mounts
    except (NotFound, RecordInvalid):
        return set()  # nothing starts from it, and the doctor reports it
    return {mount.source for mount in mounts if mount.type == "volume"}


async def _services(call: Call) -> dict[str, Service]:
    """All services that decode, as ``part_of`` names them."""
    listing = await ServiceStore(call.client, call.keys).list()
    return {reference(SERVICES, stored.record.id): stored.record for stored in listing.items}


async def _manifests(call: Call) -> Mapping[str, set[str]]:
    """The manifests by which pods are, or will be, placed, each with whose it is."""
    found, services = defaultdict[str, set[str]](set), await _services(call)
    for service in services.values():
        if service.version is not None:
            found[service.version.manifest].add(title(SERVICES, service.name))
    deployments = NamedRecords(call.client, call.keys, DEPLOYMENTS, Deployment, "deployment")
    for deployment in (await deployments.list()).items:
        for goal in deployment.record.goals:
            for version in (goal.wanted, goal.previous):
                if version is not None:
                    found[version.manifest].add(title(SERVICES, goal.name))
    for family in owners():
        for owner in (await overview.records_of(call.client, call.keys, family).list()).items:
            whole = services.get(owner.record.part_of)
            user = title(SERVICES, whole.name) if whole is not None else title(family.name, owner.record.name)
            for sha in owner.record.manifests:
                found[sha].add(user)
    return found
