"""Finds secrets that somebody can open who was removed from their group, in the store and in manifests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
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
from store.secrets import Sealed, SecretGroup, SecretVersion
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
        if secrets.stale(each, found.groups):
            by_path.setdefault(each.path, []).append(each)
    for path, versions in sorted(by_path.items()):
        numbers = listed([str(each.version) for each in versions], 3)
        yield Finding(
            "secret-stale",
            f"{secrets.PREFIX}{path}",
            f"version {numbers} can be opened by {_who(found, versions[-1])}",
            f"farmctl secret reseal {path} --identity FILE; then set a new value, which they do not know",
        )
    held = {each for _, agent in survey.decoded("agents", Agent) for each in agent.features}
    for family, entry, owner in survey.owners():
        if owner.deleting:
            continue
        sealed = [
            each.sealed for each in map(survey.manifests.get, owner.manifests) if isinstance(each, Manifest)
        ]
        for one in sealed:
            yield from _unopened(survey.short(entry.key), one, held)
        if lines := [line for one in sealed for line in _stale(one, found)]:
            named = title(family.name, owner.name)
            fix = f"reseal these secrets, then apply the file of {named} again"
            yield Finding("secret-stale", survey.short(entry.key), f"its manifest has {lines[0]}", fix)


def _unopened(owner: str, sealed: Mapping[str, Sealed], held: set[str]) -> Iterator[Finding]:
    """The first secret that no agent which is present can open: such a pod starts nowhere."""
    for name, each in sorted(sealed.items()):
        if held.isdisjoint(f"{IDENTITY}{recipient}" for recipient in each.recipients):
            what = f"no agent that is present has an identity of group {each.group}, to open {name}"
            fix = "see agent.secret_identities of its nodes, and credential.invalid in their agents' logs"
            yield Finding("secret-unopened", owner, what, fix)
            return


def _stale(sealed: Mapping[str, Sealed], found: Told) -> list[str]:
    return [
        f"{name} as it can be opened by {_who(found, each)}"
        for name, each in sorted(sealed.items())
        if secrets.stale(each, found.groups)
    ]


def _who(found: Told, version: SecretVersion | Sealed) -> str:
    if version.group not in found.groups:
        return f"the recipients of group {version.group}, which does not exist any more"
    removed = [f"{each[:12]}…" for each in secrets.stale(version, found.groups)]
    return f"{listed(removed, 3)}, removed from group {version.group}"
