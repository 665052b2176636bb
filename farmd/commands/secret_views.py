"""What people see of secrets: never a value, and nothing that depends on one but the size of ciphertext."""

from __future__ import annotations

import re
from functools import partial

import msgspec

from farmd import kinds
from farmd.commands.mutation import Call
from farmd.commands.sealing import groups
from store import families, manifests, secrets
from store.errors import NotFound, RecordInvalid
from store.features import IDENTITY
from store.manifests import Manifest
from store.named import records
from store.nodes import Agent
from store.secrets import SecretVersion
from store.several import several


class SecretRow(msgspec.Struct, frozen=True):
    """One secret in a list."""

    name: str
    version: int
    group: str
    recipients: int
    stale: int


class SecretVersionRow(msgspec.Struct, frozen=True):
    """One version of a secret; ``stale`` counts its recipients that the group does not have any more."""

    version: int
    at: float
    by: str
    group: str
    recipients: int
    stale: int
    state: str
    reason: str


async def rows(call: Call, prefix: str = "") -> tuple[list[SecretRow], list[str]]:
    """The secrets below a prefix, by name, and a line for each that does not decode."""
    tree = call.keys.tree(secrets.FAMILY)
    below = f"{tree}{prefix.removeprefix(secrets.PREFIX)}"
    found = await records(call.client, below, SecretVersion, mode="consistent")
    known = await _recipients(call)
    listed = [
        SecretRow(each.path, each.version, each.group, len(each.recipients), len(secrets.stale(each, known)))
        for each in (stored.record for stored in found.items)
    ]
    return listed, found.mistakes


async def history(call: Call, path: str) -> tuple[list[SecretVersionRow], list[str]]:
    """The versions of a secret that are kept, newest first, and a line for each that does not decode.

    Raises:
        NotFound: there never was one.
    """
    kept = await secrets.versions(call.client, call.keys, path)
    current = await secrets.newest(call.client, call.keys, path)
    if current is None and not kept.items:
        raise secrets.missing(path)
    newest, known = current.record.version if current else 0, await _recipients(call)
    found = []
    for each in (stored.record for stored in reversed(kept.items)):
        state = "deleted" if each.deleted else "current" if each.version == newest else "old"
        counts = len(each.recipients), len(secrets.stale(each, known))
        found.append(
            SecretVersionRow(each.version, each.at, each.by, each.group, *counts, state, each.reason)
        )
    return found, kept.mistakes


class SecretUser(msgspec.Struct, frozen=True):
    """An object whose manifest has a version of a secret."""

    object: str
    version: int
    stale: int


class SecretView(msgspec.Struct, frozen=True):
    """One secret: who can open its newest version, and what uses which version."""

    name: str
    version: int
    group: str
    recipients: list[str]
    stale: list[str]
    nodes: list[str]
    users: list[SecretUser]


async def view(call: Call, path: str) -> SecretView:
    """One secret, for ``describe``.

    Raises:
        NotFound: there is no such secret.
    """
    path = secrets.valid_path(path)
    record = (await secrets.existing(call.client, call.keys, path)).record
    known = await _recipients(call)
    agents = await records(call.client, call.keys.tree("agents"), Agent)
    able = {f"{IDENTITY}{each}" for each in record.recipients}
    nodes = sorted(each.record.node for each in agents.items if able.intersection(each.record.features))
    users = await _users(call, path, known)
    return SecretView(
        path, record.version, record.group, record.recipients, secrets.stale(record, known), nodes, users
    )


async def _users(call: Call, path: str, known: dict[str, list[str]]) -> list[SecretUser]:
    """The owners whose manifests have a version of a secret, and records of what makes such owners."""
    by_digest: dict[str, list[str]] = {}
    for family in families.owners():
        assert family.record is not None
        listing = await records(call.client, call.keys.tree(family.name), family.record)
        for stored in listing.items:
            for sha in stored.record.manifests:
                by_digest.setdefault(sha, []).append(kinds.title(family.name, stored.record.name))
    found = []
    bodies = await several(partial(_manifest, call), sorted(by_digest))
    for sha, manifest in zip(sorted(by_digest), bodies, strict=True):
        for name, each in manifest.sealed.items() if manifest is not None else ():
            if name == secrets.reference(path, each.version):
                count = len(secrets.stale(each, known))
                found += [SecretUser(titled, each.version, count) for titled in by_digest[sha]]
    # Others hold whole documents, of which owners are made later.
    written = re.compile(rb'"%s@([0-9]+)":' % re.escape(path).encode())
    for family in families.FAMILIES.values():
        if family.named and not family.owns_pods and family.record is not None:
            for stored in (await records(call.client, call.keys.tree(family.name), family.record)).items:
                titled = kinds.title(family.name, stored.record.name)
                found += [SecretUser(titled, int(each), 0) for each in written.findall(stored.raw)]
    return sorted(found, key=lambda user: (user.object, user.version))


async def _manifest(call: Call, sha: str) -> Manifest | None:
    try:
        return await manifests.read(call.client, call.keys, sha)
    except (NotFound, RecordInvalid):
        return None  # its owner says so


async def _recipients(call: Call) -> dict[str, list[str]]:
    found, _ = await groups(call)
    return {each.name: each.recipients for each in found}
