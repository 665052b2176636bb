"""Finds secrets that somebody can open who was removed from their group, in the store and in manifests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from farmd.kinds import title
from store import secrets
from store.keys import Keys
from store.manifests import Manifest
from store.named import records
from store.secrets import SecretGroup, SecretVersion
from store.words import listed

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


@dataclass(frozen=True, slots=True)
class Told:
    """The groups' recipients by name, and all versions of secrets that are kept."""

    groups: dict[str, list[str]]
    versions: list[SecretVersion]


async def told(client: ConsulClient, keys: Keys) -> Told:
    """What the store has of secrets.

    Raises:
        StoreError: Consul cannot be reached.
    """
    groups, versions = await asyncio.gather(
        records(client, keys.tree(secrets.GROUPS), SecretGroup),
        records(client, keys.tree(secrets.VERSIONS), SecretVersion),
    )
    return Told(
        {each.record.name: each.record.recipients for each in groups.items},
        [each.record for each in versions.items if not each.record.deleted],
    )


def check(survey: Survey, found: Told) -> Iterator[Finding]:
    """The findings: one per secret and one per owner."""
    by_path: dict[str, list[SecretVersion]] = {}
    for each in found.versions:
        if _stale(found, each.group, each.recipients):
            by_path.setdefault(each.path, []).append(each)
    for path, versions in sorted(by_path.items()):
        numbers = listed([str(each.version) for each in versions], 3)
        yield Finding(
            "secret-stale",
            f"{secrets.PREFIX}{path}",
            f"version {numbers} can be opened by {_who(found, versions[-1].group, versions[-1].recipients)}",
            f"farmctl secret reseal {path} --identity FILE; then set a new value, which they do not know",
        )
    for family, entry, owner in survey.owners():
        named = title(family.name, owner.name)
        lines = [line for sha in owner.manifests for line in _of_manifest(survey.manifests.get(sha), found)]
        if lines and not owner.deleting:
            fix = f"reseal these secrets, then apply the file of {named} again"
            yield Finding("secret-stale", survey.short(entry.key), f"its manifest has {lines[0]}", fix)


def _of_manifest(manifest: Manifest | None, found: Told) -> list[str]:
    sealed = manifest.sealed if isinstance(manifest, Manifest) else {}
    return [
        f"{name} as it can be opened by {_who(found, each.group, each.recipients)}"
        for name, each in sorted(sealed.items())
        if _stale(found, each.group, each.recipients)
    ]


def _stale(found: Told, group: str, recipients: Sequence[str]) -> list[str]:
    return [each for each in recipients if each not in found.groups.get(group, ())]


def _who(found: Told, group: str, recipients: Sequence[str]) -> str:
    if group not in found.groups:
        return f"the recipients of group {group}, which does not exist any more"
    stale = _stale(found, group, recipients)
    return f"{listed([f'{each[:12]}…' for each in stale], 3)}, removed from group {group}"
