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
from store.features import IDENTITY
from store.keys import Keys
from store.manifests import Manifest
from store.named import records
from store.nodes import Agent
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
        if owner.deleting:
            continue
        for sha in owner.manifests:
            yield from _unopened(survey, entry.key, survey.manifests.get(sha))
        if lines:
            fix = f"reseal these secrets, then apply the file of {named} again"
            yield Finding("secret-stale", survey.short(entry.key), f"its manifest has {lines[0]}", fix)


def _unopened(survey: Survey, key: str, manifest: Manifest | None) -> Iterator[Finding]:
    """A secret that no agent opens which is present: such a pod starts nowhere."""
    held = {each for _, agent in survey.decoded("agents", Agent) for each in agent.features}
    for name, each in sorted(manifest.sealed.items() if isinstance(manifest, Manifest) else ()):
        if held.isdisjoint(f"{IDENTITY}{recipient}" for recipient in each.recipients):
            what = f"no agent that is present has an identity of group {each.group}, to open {name}"
            fix = "see agent.secret_identities of its nodes, and credential.invalid in their agents' logs"
            yield Finding("secret-unopened", survey.short(key), what, fix)
            return


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
