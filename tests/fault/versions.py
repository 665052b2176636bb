"""Every version of the store that transactions with an audit record made, from the requests that were sent.

A watch may miss versions that follow one another quickly. A proxy in front of each client misses none: a
transaction was committed if its audit record stands, and the index of that record is when.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from store import codec
from store.audit import Audit
from store.keys import Keys
from store.pods import Place, Pod
from store.policies import at_least
from store.rcs import ReplicationController
from store.reality import Intent
from store.rollouts import KIND, Rollout
from store.services import KIND as SERVICES
from store.services import Service
from store.work import Work
from tests.fault.invariants import Dump
from tests.proxy import Seen, transactions

REMOVALS = {"delete", "delete-cas"}
WRITES = {"set", "cas", "lock"}


@dataclass(frozen=True)
class Version:
    """The store after the transaction at ``index``, as far as such transactions wrote it."""

    index: int
    audit: Audit
    records: Mapping[str, bytes] = field(repr=False)

    def under(self, keys: Keys, family: str, kind: type[Any]) -> dict[str, Any]:
        """The records of a family, decoded, by key."""
        prefix = keys.tree(family)
        found = {key: value for key, value in self.records.items() if key.startswith(prefix)}
        return {key: codec.decode(kind, value, key) for key, value in found.items()}


def audits(keys: Keys, seen: Seen) -> dict[str, Audit]:
    """The audit records of a transaction, by key."""
    if not transactions(seen):
        return {}
    found = [each["KV"] for each in json.loads(seen.body) if "KV" in each]
    return {
        each["Key"]: codec.decode(Audit, base64.b64decode(each["Value"]), each["Key"])
        for each in found
        if each["Key"].startswith(keys.tree("audit"))
    }


def versions(dump: Dump, sent: Iterable[Seen]) -> Iterator[Version]:
    """The versions in their order."""
    committed = dict[int, tuple[Audit, Seen]]()
    for seen in sent:
        for key, audit in audits(dump.keys, seen).items():
            if key in dump.entries:
                committed[dump.entries[key].create_index] = audit, seen
    records = dict[str, bytes]()
    for index, (audit, seen) in sorted(committed.items()):
        for each in json.loads(seen.body):
            operation = each.get("KV", {})
            if operation.get("Verb") in WRITES:
                records[operation["Key"]] = base64.b64decode(operation["Value"] or "")
            elif operation.get("Verb") in REMOVALS:
                records.pop(operation["Key"], None)
        yield Version(index, audit, dict(records))


# -- rollouts -----------------------------------------------------------------------------------
PodId = tuple[str, str, str]
"""(owner, node, instance)."""

Served = list[tuple[int, Place, str, str]]
"""What agents wrote, oldest first: (index, place, owner, manifest); an empty owner: nothing runs there."""


def broken(keys: Keys, found: Iterable[Version], served: Served) -> Iterator[str]:
    """A line for each rule of rollouts that a version breaks, in a world without other troubles."""
    before: Version | None = None
    for each in found:
        where = f"{each.audit.actor} {each.audit.action} at {each.index}"
        yield from (f"{where}: {line}" for line in _counted(keys, each))
        if before is not None:
            yield from (f"{where}: {line}" for line in _floor(keys, before, each, served))
        before = each


def _counted(keys: Keys, version: Version) -> Iterator[str]:
    """Both counts are those of the pods, pods and intents agree, nobody has more than there may be."""
    pods = _pods(keys, version)
    intents = version.under(keys, "intent", Intent)
    said = {(each.owner, *keys.intent_parts(key)): each.manifest for key, each in intents.items()}
    if said != {place: pod.manifest for place, pod in pods.items()}:
        yield f"pods and intents disagree: {sorted(said.keys() ^ pods.keys())}"
    for rollout in version.under(keys, KIND, Rollout).values():
        work = version.under(keys, f"work/{KIND}", Work).get(keys.work(KIND, rollout.id))
        moving = work is not None and work.rollout is not None and work.rollout.phase == "moving"
        rcs = version.under(keys, "rcs", ReplicationController)
        total = 0
        for rc in (rcs[keys.record("rcs", side)] for side in (rollout.old, rollout.new)):
            standing = sum(owner == rc.id for owner, _, _ in pods)
            total += rc.replicas_desired
            if standing != rc.replicas_desired:
                yield f"{rc.name} has {standing} pods, its count is {rc.replicas_desired}"
            if rc.taken != moving:
                yield f"{rc.name} is {'taken' if rc.taken else 'lent'}, the state is {work}"
        most = rollout.started_from + rollout.replicas if rollout.policy.beside else rollout.replicas
        if total > max(most, rollout.started_from):
            yield f"both counts are {total}"


def _floor(keys: Keys, before: Version, after: Version, served: Served) -> Iterator[str]:
    """No pod that serves leaves below the floor, and no service is left with fewer."""
    serving, left = _serving(keys, before, served, after.index), _pods(keys, after).keys()
    for rollout in before.under(keys, KIND, Rollout).values():
        sides = {pod for pod in serving if pod[0] in (rollout.old, rollout.new)}
        floor = at_least(rollout.policy.minimum or 0, rollout.replicas)
        if sides - left and len(sides & left) < floor:
            yield f"{len(sides & left)} of {len(sides)} serving pods stay, the floor is {floor}"
        for service in after.under(keys, SERVICES, Service).values():
            routed = {pod for pod in serving & left if f"rcs/{pod[0]}" in service.active}
            if len(routed) < floor:
                yield f"{service.name} leads to {len(routed)} pods that serve, the floor is {floor}"


def _pods(keys: Keys, version: Version) -> dict[PodId, Pod]:
    return {keys.pod_parts(key): pod for key, pod in version.under(keys, "pods", Pod).items()}


def _serving(keys: Keys, version: Version, served: Served, index: int) -> set[PodId]:
    """Which pods of a version serve right before the transaction at ``index``."""
    running = {place: (owner, sha) for at, place, owner, sha in served if at < index}
    pods = _pods(keys, version)
    return {pod for pod in pods if running.get(pod[1:]) == (pod[0], pods[pod].manifest)}
