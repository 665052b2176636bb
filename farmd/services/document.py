"""The document of a service that only names pods of owners, which have files of their own.

``kind: service`` has two forms: ``container`` describes pods, which a deployment makes (``farmd.deploy``);
``pods`` names owners of pods in its place. A rollout goes on to change which owners a service names, and that
is no difference from its document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from farmd.commands.bundled import Wish
from farmd.commands.difference import fields
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Mutation, Scalar
from farmd.kinds import title
from farmd.services import commands
from store import catalog, codec
from store.entry import Stored
from store.errors import Ambiguous, InputInvalid, NotFound
from store.families import FAMILIES
from store.keys import valid_name
from store.named import Owner
from store.services import NOUN, Catalog, Service


class NamedService(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A name for the pods of owners that have files of their own. Routers and Consul find them by it."""

    name: str
    pods: list[str]
    port: str
    catalog: Catalog | None = None


def names_pods(document: Mapping[str, Any]) -> bool:
    """Whether a document of a service is of this form."""
    return "pods" in document and "container" not in document


def parse(document: Mapping[str, Any], where: str) -> NamedService:
    """Check a document.

    Raises:
        InputInvalid: naming the place and the field.
    """
    spec = codec.parse_input(NamedService, dict(document), where)
    try:
        valid_name(spec.name, "name")
        valid_name(spec.port, "port")
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error
    if spec.catalog is not None and (wrong := catalog.mistake(spec.name, spec.catalog, True)):
        raise InputInvalid(f"{where}: {wrong}", field="catalog")
    return spec


async def document(call: Call, service: Service) -> dict[str, Any]:
    """A service as its file."""
    owners = await commands.owners_of(call, service)
    pods = [title(ref.partition("/")[0], owner.name) for ref, owner in owners.items()]
    spec = NamedService(name=service.name, pods=pods, port=service.port, catalog=service.catalog)
    made: dict[str, Any] = msgspec.to_builtins(spec)
    return made


async def differs(
    call: Call, stored: Stored[Service], wish: Wish
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """The stated fields that differ, before and after."""
    record: Service = stored.record
    wanted = msgspec.structs.replace(record, **_stated(wish))
    before, after = fields(record, wanted, {})
    if "pods" in wish.stated and not await _names(call, record, wish.spec.pods):
        standing = await document(call, record)
        before["pods"], after["pods"] = ", ".join(standing["pods"]), ", ".join(wish.spec.pods)
    return before, after


def _stated(wish: Wish) -> dict[str, Any]:
    """The fields of the record that a document states."""
    stated = {name: getattr(wish.spec, name) for name in {"port", "catalog"} & wish.stated}
    return {**stated, "catalog_off": False} if stated.get("catalog") is not None else stated


async def _names(call: Call, service: Service, pods: list[str]) -> bool:
    """Whether a service names these owners, or what a rollout of them has it name meanwhile. It names none
    that does not exist or owns no pods: ``update`` reports why.
    """
    try:
        wanted = dict([await commands.find_owner(call, each) for each in pods])
    except (NotFound, Ambiguous, InputInvalid):
        return False
    there = await commands.owners_of(call, service)
    if wanted.keys() == set(service.active):
        return True
    managers = [
        {_successors(owner) or ref for ref, owner in owners.items()}
        for owners in ({ref: stored.record for ref, stored in wanted.items()}, there)
    ]
    return managers[0] == managers[1] and len(there) == len(service.active)


def _successors(owner: Owner) -> str:
    """What puts another owner in this one's place meanwhile; empty: nothing does."""
    manager: str = getattr(owner, "managed_by", "")
    family = FAMILIES.get(manager.partition("/")[0])
    return manager if family is not None and family.switches else ""


async def create(call: Call, spec: NamedService) -> Mutation:
    """Make the service; see ``farmd.services.commands.create``."""
    return await commands.create(call, spec.name, spec.port, spec.pods, spec.catalog)


async def update(call: Call, stored: Stored[Service], wish: Wish) -> Mutation:
    """Bring the stated fields of a service to what is asked for.

    Raises:
        InputInvalid, NotFound, Conflict: as ``farmd.services.commands.create``.
        Locked: somebody holds its mutation lock, or a deployment changes it.
    """
    record, spec = stored.record, wish.spec
    pods = None
    if "pods" in wish.stated and not await _names(call, record, spec.pods):
        pods = spec.pods
    elif "port" in wish.stated and spec.port != record.port:  # the owners must have it
        pods = (await document(call, record))["pods"]
    return await commands.change(call, stored, pods, _stated(wish), await differs(call, stored, wish))


async def verdict(call: Call, service: Service) -> Readiness:
    """It waits for nothing: its owners have verdicts of their own. One that is gone it cannot name."""
    there = await commands.owners_of(call, service)
    gone = [ref for ref in service.active if ref not in there]
    if gone:
        return Readiness("failed", f"{NOUN} names {gone[0]}, which does not exist")
    return Readiness("ready")
