"""Finds what is wrong with the cluster's entries in Consul's catalogue (R37).

Farms repair entries within a minute, so most findings count only if a second look has them, too. A token sees
only the nodes and services that it may read; the rest is left out of Consul's answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from store import catalog, codec, operations
from store.catalog import Node, Registered, Standing
from store.errors import RecordInvalid
from store.farms import Member
from store.keys import Keys
from store.operations import Operation
from store.services import KIND, Service
from store.status import Status

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

FACT = "entries in consul's catalogue"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """``nodes``: those with this cluster's names or mark. ``entries``: this cluster's, by service and id;
    ``strangers``: what others registered on this cluster's nodes. ``names``: all that is registered under the
    names of the entries.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    entries: Mapping[str, Mapping[str, Standing]] = field(default_factory=dict)
    strangers: tuple[tuple[str, catalog.Service], ...] = ()
    names: Mapping[str, Sequence[Registered]] = field(default_factory=dict)


async def told(client: ConsulClient, keys: Keys) -> Catalogue:
    """What the catalogue has of the cluster.

    Raises:
        StoreError: it cannot be read.
    """
    every, entry = await asyncio.gather(catalog.every_node(client), client.read(keys.cluster))
    if entry is None or not (cluster := entry.value.decode("utf-8", "replace").strip('"')):
        return Catalogue()
    found = {name: node for name, node in every.items() if _ours(cluster, node)}
    checks = await catalog.checks(client, cluster) if found else {}
    nodes = {name: catalog.judged(node, checks) for name, node in found.items()}
    entries: dict[str, dict[str, Standing]] = {}
    strangers = []
    usable = [name for name in nodes if catalog.named(cluster, name)]
    for name, node in (await catalog.services(client, usable)).items():
        for ident, service in (node[1] if node is not None else {}).items():
            parts = catalog.parts(cluster, ident)
            if parts is None or catalog.node_name(cluster, parts[1]) != name:
                strangers.append((name, service))
                continue
            check = checks.get((name, catalog.check_id(ident)))
            entries.setdefault(parts[0], {})[ident] = Standing(name, service, check)
    names = {each.service.service for of in entries.values() for each in of.values()}
    return Catalogue(nodes, entries, tuple(strangers), await catalog.registered(client, names))


def _ours(cluster: str, node: Node) -> bool:
    marked = (node.meta or {}).get(catalog.MARK) == cluster
    return marked or node.node.startswith(catalog.node_name(cluster, ""))


def facts(survey: Survey, seen: Catalogue) -> dict[str, str]:
    """The number of entries; no fact if there are none and no service asks for one."""
    count = sum(map(len, seen.entries.values()))
    asked = sum(service.catalog is not None for _, service in survey.decoded(KIND, Service))
    if not (count or asked):
        return {}
    hint = "" if count else ": there are none, or this token may not read its nodes and services"
    return {FACT: f"{count}, services that request them: {asked}{hint}"}


def check(survey: Survey, seen: Catalogue) -> list[Finding]:
    """Nodes and names that others have, which nothing but people changes."""
    return [*_refused(survey, seen), *_shared(survey, seen)]


def passing(survey: Survey, seen: Catalogue) -> list[Finding]:
    """What a farm may be about to repair."""
    if not survey.proven(KIND):
        return []
    return [*_unasked(survey, seen), *_drift(survey, seen)]


def _refused(survey: Survey, seen: Catalogue) -> Iterator[Finding]:
    """Nodes of such names that farmd does not write."""
    for name, node in sorted(seen.nodes.items()):
        named = catalog.named(survey.cluster_id, name)
        if named and catalog.owns(survey.cluster_id, node):
            continue
        if node.id:
            why = f"an agent of Consul has this name (its ID is {node.id})"
        elif not named:
            why = "it has the mark of this cluster and a name that farmd gives to no node"
        elif node.serf:
            why = "it has a check named serfHealth, so Consul removes it with its entries"
        else:
            why = f"its meta {catalog.MARK} is {(node.meta or {}).get(catalog.MARK, 'missing')!r}"
        yield Finding(
            "catalog-node",
            f"catalog/{name}",
            f"{why}: farms register no pods of this node",
            "give that agent another node_name, or remove the entries that are not farmd's",
        )


def _shared(survey: Survey, seen: Catalogue) -> Iterator[Finding]:
    for name, instances in sorted(seen.names.items()):
        others = [each for each in instances if not _entered(survey.cluster_id, each)]
        if others:
            first, more = others[0], f" and {len(others) - 1} more" if len(others) > 1 else ""
            yield Finding(
                "catalog-name",
                f"catalog/{name}",
                f"others register it, too: {first.service_id!r} on node {first.node}{more}; clients get both",
                "register the service under another name: farmctl service catalog NAME --as OTHER",
            )


def _entered(cluster: str, instance: Registered) -> bool:
    """Whether an instance is an entry of this cluster: it is on the node that its id names."""
    parts = catalog.parts(cluster, instance.service_id)
    return parts is not None and instance.node == catalog.node_name(cluster, parts[1])


def _unasked(survey: Survey, seen: Catalogue) -> Iterator[Finding]:
    """Entries of services that are gone, or do not ask."""
    features = {feature for _, farm in survey.decoded("farms", Member) for feature in farm.features}
    every = catalog.ALL in features
    known = {service.id: (entry, service) for entry, service in survey.decoded(KIND, Service)}
    for ident, entries in sorted(seen.entries.items()):
        key = survey.keys.record(KIND, ident)
        if ident not in known:
            if key in survey.trees[KIND] or (ident in catalog.MEMBERS and catalog.REGISTERED in features):
                continue  # it does not decode; or it is farmd itself
            why, proof = f"service {ident} does not exist", operations.check_not_exists(key)
        else:
            record, service = known[ident]
            if catalog.wish(service, every) is not None:
                continue
            why = f"service {service.name} does not request to be there"
            proof = operations.check_index(key, record.modify_index)
        for each in entries.values():
            yield _removal(each, ident, why, proof)


def _removal(entry: Standing, service: str, why: str, proof: Operation) -> Finding:
    name = f"catalog/{entry.node}/{entry.service.id}"
    gone = catalog.delete_service(entry.node, entry.service)
    removal = Removal(KIND, service, (), entries=((name, gone),), proofs=(proof,))
    told = f"{entry.service.service!r} is registered, but {why}"
    return Finding("catalog-unasked", name, told, f"farmctl doctor --fix {name} removes it", removal)


def _drift(survey: Survey, seen: Catalogue) -> Iterator[Finding]:
    """Entries other than farms write them: none does, or somebody else changes them all the time."""
    for _, service in survey.decoded(KIND, Service):
        if (asked := service.catalog) is None:
            continue
        entries = seen.entries.get(service.id, {})
        wrong = [why for each in entries.values() if (why := _different(service, each))]
        placed = _placed(survey, service.id) if seen.nodes else 0
        if missing := max(0, placed - len(entries)):
            wrong.append(f"{missing} of {missing + len(entries)} entries are missing")
        if wrong:
            name = asked.name or service.name
            yield _differs(f"catalog/{name}", wrong[0])
    for node, stranger in seen.strangers:
        what = f"others registered {stranger.id!r} on a node of farmd, which removes it with the node"
        yield _differs(f"catalog/{node}/{stranger.id}", what)


def _placed(survey: Survey, service: str) -> int:
    """The number of entries from the status of a service's worker; 0 if it has none."""
    entry = survey.trees["status"].get(survey.keys.status("catalog", service))
    if entry is None:
        return 0
    try:
        status = codec.decode(Status, entry.value, entry.key)
    except RecordInvalid:
        return 0
    return status.placed if status.state == "converged" else 0


def _different(service: Service, entry: Standing) -> str:
    asked = service.catalog
    assert asked is not None
    name, tags = asked.name or service.name, set(entry.service.tags or [])
    if entry.check is None:
        return f"entry {entry.service.id} has no check, so it counts as passing"
    if entry.service.service != name:
        return f"entry {entry.service.id} has the name {entry.service.service!r}, expected {name!r}"
    if tags not in (set(asked.tags), set(asked.canary_tags or asked.tags)):
        return f"entry {entry.service.id} has the tags {', '.join(sorted(tags)) or 'none'}"
    return ""


def _differs(name: str, why: str) -> Finding:
    fix = "a farm with the kind catalog repairs it within a minute; find out who changes it, and stop that"
    return Finding("catalog-drift", name, why, fix)
