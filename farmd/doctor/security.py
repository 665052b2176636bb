"""Finds pods that nodes refuse or run with old rights: signatures (R32), secrets, and users."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farmd.commands.signing import trusts
from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from farmd.kinds import title
from farmd.signing.keys import genuine, missing
from store import revocations, secrets, signatures
from store.features import ENFORCED, IDENTITY
from store.keys import Keys
from store.manifests import Manifest
from store.named import records
from store.nodes import Agent
from store.reality import Reality
from store.secrets import Sealed, SecretGroup, SecretVersion
from store.signatures import EARLY, Signature, Statement
from store.times import rfc3339
from store.words import listed

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

SOON_SECONDS = 7 * 86_400.0


def check(survey: Survey) -> Iterator[Finding]:
    """The findings; none where no node enforces signatures."""
    agents = [agent for _, agent in survey.decoded("agents", Agent) if ENFORCED in agent.features]
    if not agents:
        return
    nodes = listed(sorted(agent.node for agent in agents), 3)
    signed: dict[str, list[Signature]] = {}
    for one in _counting(survey):
        signed.setdefault(one.statement.digest, []).append(one)
    for family, entry, owner in survey.owners():
        for sha in () if owner.deleting else owner.manifests:
            said = f"{family.name}/{owner.name}"
            held = [each for each in signed.get(sha, ()) if signatures.covers(each.statement.owner, said)]
            by_node = ([one.statement for one in held if trusts(agent, one)] for agent in agents)
            until = max(_until(statements, survey.now) for statements in by_node)
            named = title(family.name, owner.name)
            sign = f"farmctl manifest sign {named.partition('/')[0]} -f FILE --key KEYFILE"
            fix = f"sign the file that {named} comes from: {sign}"
            if until <= survey.now:
                what = f"no signature of manifest {sha[:12]} is valid{_by(held, survey.now)}: {nodes}"
                yield Finding("unsigned", survey.short(entry.key), f"{what} start no new pod of it", fix)
            elif until <= survey.now + SOON_SECONDS:
                when = f"the signature of manifest {sha[:12]} ends at {rfc3339(until)}"
                yield Finding("signature-ends", survey.short(entry.key), f"{when}: no pod starts then", fix)


def _counting(survey: Survey) -> Iterator[Signature]:
    """The signatures that are genuine, of this cluster or of version 1, and not revoked."""
    able, cluster = not missing(), survey.cluster_id
    found = list(survey.decoded(signatures.KIND, Signature))
    below = survey.keys.revocations
    revoked = revocations.revoked(one for entry, one in found if entry.key.startswith(below))
    for entry, one in found:
        counts = one.statement.cluster in ("", cluster) and not revoked.covers(one.statement)
        if counts and not entry.key.startswith(below) and (not able or genuine(one)):
            yield one


def _by(held: list[Signature], now: float) -> str:
    """The untrusted keys of the signatures that would be valid now otherwise."""
    keys = sorted({each.key_id for each in held if _until([each.statement], now) > now})
    return f", because no node trusts key {listed(keys, 3)} for it" if keys else ""


def _until(statements: list[Statement], now: float) -> float:
    """Until when a start is permitted from now on without a break; not later than ``now``: it is not."""
    until = now
    for each in sorted(statements, key=lambda said: said.begins):
        if each.begins - EARLY <= until:
            until = max(until, each.ends)
    return until


# Secrets that a removed recipient can still open, in the store and in manifests.


@dataclass(frozen=True, slots=True)
class SecretsTold:
    """The groups' recipients by name, and all versions of secrets that are kept."""

    groups: dict[str, list[str]]
    versions: list[SecretVersion]


async def secrets_told(client: ConsulClient, keys: Keys) -> SecretsTold:
    """What the store has of secrets.

    Raises:
        StoreError: Consul cannot be reached.
    """
    groups, versions = await asyncio.gather(
        records(client, keys.tree(secrets.GROUPS), SecretGroup),
        records(client, keys.tree(secrets.VERSIONS), SecretVersion),
    )
    return SecretsTold(
        {each.record.name: each.record.recipients for each in groups.items},
        [each.record for each in versions.items if not each.record.deleted],
    )


def check_secrets(survey: Survey, found: SecretsTold) -> Iterator[Finding]:
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


def _stale(sealed: Mapping[str, Sealed], found: SecretsTold) -> list[str]:
    return [
        f"{name} as it can be opened by {_who(found, each)}"
        for name, each in sorted(sealed.items())
        if secrets.stale(each, found.groups)
    ]


def _who(found: SecretsTold, version: SecretVersion | Sealed) -> str:
    if version.group not in found.groups:
        return f"the recipients of group {version.group}, which does not exist any more"
    removed = [f"{each[:12]}…" for each in secrets.stale(version, found.groups)]
    return f"{listed(removed, 3)}, removed from group {version.group}"


# Programs that run as root, although their node would not start them as root today: an earlier version of the
# agent started them, and they keep their user until their manifests change.


FIX = "change its manifest, for example by naming its user: the new pod runs as that user (docs/workloads.md)"


def check_users(survey: Survey) -> Iterator[Finding]:
    """A finding per pod that runs as root although its node would not start it as root now."""
    for entry, reality in survey.decoded("reality", Reality):
        if reality.old_user:
            node, instance = survey.keys.reality_parts(entry.key)
            what = (
                f"{instance} on {node} runs as {reality.old_user}: an earlier version of the agent started it"
            )
            yield Finding("old-user", survey.short(entry.key), what, FIX)
