"""Runs all checks. A finding that may come from a change during the read, or may soon be over, counts only
if a second survey has it, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from farmd.commands.mutation import Call
from farmd.doctor import (
    catalog,
    cluster,
    consul,
    health,
    leftovers,
    parts,
    presence,
    records,
    reservations,
    security,
    work,
)
from farmd.doctor.model import Finding, Report
from farmd.doctor.survey import Step, Survey, survey
from farmd.kinds import KINDS
from store.deployments import KIND as DEPLOYMENTS
from store.families import owners
from store.keys import Keys
from store.ports import Clock
from store.services import KIND as SERVICES
from store.services import Service

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

# A passing state has this long to end.
PATIENCE_SECONDS = 3.0


async def examine(client: ConsulClient, keys: Keys, clock: Clock, step: Step = lambda _: None) -> Report:
    """All findings, and a few facts; ``step`` gets what is read next. Without a leader nothing can be read.

    Raises:
        StoreError: Consul cannot be reached, or the token may not read.
    """
    step("Consul's agent and leader")
    own = await consul.told(client)
    room = consul.check_disk(own.debug_config.data_directory, own.config.node_id)
    store = room.beside(await consul.check(client, own))
    if store.has(consul.NO_LEADER):
        return store
    found, registered, secrets = await asyncio.gather(
        consul.servers_told(client), catalog.told(client, keys), security.secrets_told(client, keys)
    )
    store = consul.check_servers(found).beside(store)
    seen = await survey(client, keys, clock, step)
    findings = [*cluster.check(seen), *presence.check(seen), *work.check(seen), *records.check(seen)]
    findings += [*presence.check_clusters(seen), *health.check(seen), *catalog.check(seen, registered)]
    findings += [*security.check(seen), *security.check_users(seen), *security.check_secrets(seen, secrets)]
    findings += consul.check_elections(seen, own.debug_config.raft_heartbeat)
    lost = _lost(seen)
    passing = [*consul.late_servers(found), *health.passing(seen), *catalog.passing(seen, registered)]
    if passing:
        await clock.sleep(PATIENCE_SECONDS)
    if lost or passing:
        again = await survey(client, keys, clock, lambda what: step(f"again: {what}"))
        late = consul.late_servers(await consul.servers_told(client))
        entries = catalog.passing(again, await catalog.told(client, keys))
        kept = (*late, *_lost(again), *health.passing(again), *entries)
        still = {(each.code, each.object) for each in kept}
        lost = [finding for finding in (*passing, *lost) if (finding.code, finding.object) in still]
    facts = {**store.facts, **_facts(seen), **presence.facts(seen), **catalog.facts(seen, registered)}
    return Report(facts, _unique((*store.findings, *findings, *lost)))


def _lost(seen: Survey) -> list[Finding]:
    """Findings of records without an owner."""
    return [
        *leftovers.check_pods(seen),
        *leftovers.check(seen),
        *work.check_states(seen),
        *parts.check(seen),
        *reservations.check(seen),
    ]


def _facts(seen: Survey) -> dict[str, str]:
    named = "none" if seen.cluster is None else seen.cluster.value.decode("utf-8", "replace").strip('"')
    counts = {KINDS[family.name].many: family.name for family in owners()} | {"pods": "pods"}
    return {
        "cluster": named,
        **{many: str(sum(1 for _ in seen.records(name))) for many, name in counts.items()},
        "manifests": str(len(seen.manifests)),
        **_joined(seen),
    }


def _joined(seen: Survey) -> dict[str, str]:
    """Services that name a deployment which is over: it is no lock any more, and harms nobody."""
    over = [
        service.name
        for _, service in seen.decoded(SERVICES, Service)
        if service.deployment
        and seen.keys.record(DEPLOYMENTS, service.deployment) not in seen.trees[DEPLOYMENTS]
    ]
    return {"services with a deployment that is over": ", ".join(sorted(over))} if over else {}


def _unique(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple({(finding.code, finding.object): finding for finding in findings}.values())


async def outside(call: Call, transport: Any) -> Report:
    """What each kind of work finds behind a transport to where its items lie, if that is outside of Consul.

    Raises:
        StoreError: there is no answer, or this person may not read something there.
    """
    found = [await kind.examined()(call, transport) for kind in KINDS.values() if kind.examined]
    facts = {name: text for each in found for name, text in each.facts.items()}
    return Report(facts, tuple(Finding(*fault) for each in found for fault in each.faults))
