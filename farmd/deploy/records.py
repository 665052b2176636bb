"""The records of services and their owners as they stand now, and what takes their place."""

from __future__ import annotations

from typing import Any

from farmd.commands.specs import changed
from farmd.deploy.noun import owner_noun
from farmd.deploy.sights import ServiceFacts
from farmd.farm.writer import Write
from farmd.work.context import Context
from store.entry import Stored
from store.families import FAMILIES
from store.manifests import Manifest
from store.named import NamedRecords, decode_named
from store.services import Service, ServiceStore


def of_owner(context: Context, sight: ServiceFacts) -> NamedRecords[Any]:
    """The records of the family that its owner is of."""
    return owner_noun(sight.family).records(context.client, context.keys)


async def owner(context: Context, sight: ServiceFacts) -> Stored[Any] | None:
    """The owner as it is now, with the fields that this version does not know."""
    return await standing(context, sight.family, sight.owner_id)


async def standing(context: Context, family: str, ident: str) -> Stored[Any] | None:
    """A record as it is now; None: there is none."""
    entry = await context.client.read(context.keys.record(family, ident))
    record = FAMILIES[family].record
    return None if entry is None or record is None else decode_named(record, context.keys, entry)


def rewritten(context: Context, sight: ServiceFacts, standing: Stored[Any], **fields: Any) -> Write:
    """An owner with other fields, in place of the very version that was read."""
    tree = context.caches.tree(FAMILIES[sight.family])
    return Write.over(standing.key, changed(standing.record, **fields), standing, tree)


def services(context: Context) -> ServiceStore:
    """The services, as the store has them."""
    return ServiceStore(context.client, context.keys)


def port_of(service: Service, manifest: Manifest) -> str:
    """The port under which it is found: the one that it has, else the first of its pods."""
    if service.port in manifest.ports:
        return service.port
    return next(iter(manifest.ports), "")
