"""What holds of every version of the store while deployments run, in a world without other troubles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from store.audit import Audit
from store.daemonsets import DaemonSet
from store.deployments import KIND, Deployment
from store.keys import Keys
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Intent
from store.services import KIND as SERVICES
from store.services import Service
from tests.fault.versions import PodId, Served, Version


def broken(keys: Keys, found: Iterable[Version], served: Served, floors: Mapping[str, int]) -> Iterator[str]:
    """A line for each rule that a version breaks; ``floors`` by the name of the owner of the pods."""
    before = Version(0, Audit(at=0.0, actor="", action="", kind="", id=""), {})
    for each in found:
        where = f"{each.audit.actor} {each.audit.action} at {each.index}"
        rules = [*_agree(keys, each), *_one_writer(keys, before, each), *_locked(keys, each)]
        rules += _floor(keys, before, each, served, floors)
        yield from (f"{where}: {line}" for line in rules)
        before = each


def _agree(keys: Keys, version: Version) -> Iterator[str]:
    """Each pod has its intent, and nothing else has one."""
    intents = version.under(keys, "intent", Intent)
    said = {(each.owner, *keys.intent_parts(key)): each.manifest for key, each in intents.items()}
    if said != {place: pod.manifest for place, pod in pods_of(keys, version).items()}:
        yield f"pods and intents disagree: {sorted(said.keys() ^ pods_of(keys, version).keys())}"


def _one_writer(keys: Keys, before: Version, after: Version) -> Iterator[str]:
    """Pods of an owner that is taken are changed by that deployment alone, others by their owner's worker
    (R14); those of a hook by the deployment that holds the service.
    """
    were, are = pods_of(keys, before), pods_of(keys, after)
    changed = {place[0] for place in were.keys() | are.keys() if were.get(place) != are.get(place)}
    owners = owners_of(keys, before) | owners_of(keys, after)
    services = before.under(keys, SERVICES, Service) | after.under(keys, SERVICES, Service)
    held = {each.id: f"{KIND}/{each.deployment}" for each in services.values()}
    writer = f"{after.audit.kind}/{after.audit.id}"
    for owner in changed:
        own = owners.get(owner)
        if own is None:
            expected = held.get(owner, "nobody")
        else:
            expected = own.managed_by if own.taken else f"{family_of(own)}/{owner}"
        if writer != expected:
            yield f"{writer} changed pods of {owner}, which {expected} has"


def _locked(keys: Keys, version: Version) -> Iterator[str]:
    """An owner that is taken is taken by a deployment that exists, and that its service names."""
    live = {each.id: each for each in version.under(keys, KIND, Deployment).values()}
    services = version.under(keys, SERVICES, Service)
    for each in owners_of(keys, version).values():
        if each.taken != bool(each.managed_by):
            yield f"{each.name} is managed by {each.managed_by or 'nobody'}, and taken: {each.taken}"
        if not each.taken:
            continue
        service = services.get(keys.record(SERVICES, each.part_of.partition("/")[2]))
        deployment = each.managed_by.partition("/")[2]
        if deployment not in live or service is None or service.deployment != deployment:
            yield f"{each.name} is taken by {each.managed_by}, its service is {service}"


def _floor(
    keys: Keys, before: Version, after: Version, served: Served, floors: Mapping[str, int]
) -> Iterator[str]:
    """No pod that serves goes, or changes, below the floor."""
    running = {place: (owner, sha) for at, place, owner, sha in served if at < after.index}
    were, are = (
        {
            place
            for place, pod in pods_of(keys, version).items()
            if running.get(place[1:]) == (place[0], pod.manifest)
        }
        for version in (before, after)
    )
    for each in owners_of(keys, before).values():
        had, stay = ({place for place in pods if place[0] == each.id} for pods in (were, are))
        if had - stay and len(stay) < floors[each.name]:
            yield f"{len(stay)} of {len(had)} serving pods of {each.name} stay, expected {floors[each.name]}"


def owners_of(keys: Keys, version: Version) -> dict[str, ReplicationController | DaemonSet]:
    """Controllers and daemon sets by id."""
    rcs = version.under(keys, "rcs", ReplicationController)
    sets = version.under(keys, "daemonsets", DaemonSet)
    return {each.id: each for each in (rcs | sets).values()}


def family_of(owner: ReplicationController | DaemonSet) -> str:
    """The first part of its key."""
    return "rcs" if isinstance(owner, ReplicationController) else "daemonsets"


def pods_of(keys: Keys, version: Version) -> dict[PodId, Pod]:
    """The pods of a version by (owner, node, instance)."""
    return {keys.pod_parts(key): pod for key, pod in version.under(keys, "pods", Pod).items()}
