"""Finds services whose record is gone, by the owner of their pods, which bears their mark (``part_of``).

A deployment of such a name takes the owner back with its pods. What only the record told is lost: the
project, settings of updates, the hook and the history. What must never break: an owner whose service exists,
or that bears no mark, is another one's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from farmd.commands.mutation import Call
from farmd.deploy.noun import owner_noun
from farmd.deploy.owners import owner_name
from farmd.kinds import KINDS, title
from store.entry import Stored
from store.families import owners
from store.services import KIND, Mode, Service, Version, reference


async def services(call: Call, names: Collection[str], project: str) -> dict[str, Stored[Service]]:
    """The services of these names, which no record bears, that owners of pods tell of; their index is 0.

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
            key = call.keys.record(KIND, ident)
            if of == KIND and await call.client.read(key, mode="consistent") is None:
                found[name] = Stored(key, _service(ident, name, project, family, stored.record), 0, b"")
    return found


def told(stored: Stored[Service]) -> str:
    """What becomes of such a service, for people."""
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
