"""What must hold in the store after any fault: pure functions over one dump of it.

Each returns a line for every violation; ``violations`` asks all. They know the records, not the code that
wrote them, so that a mistake shared by several parts of farmd is still found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from store import codec
from store.audit import Audit
from store.daemonsets import DaemonSet
from store.deployments import Deployment
from store.entry import Entry
from store.jobs import Job
from store.keys import Keys, is_sentinel
from store.locks import Holder
from store.manifests import Manifest, asked
from store.nodes import Node, Reserved
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Intent
from store.selectors import parse
from store.services import Service
from store.work import Work
from tests.fault import app_invariants

T = TypeVar("T")
Place = tuple[str, str]
"""(node, instance)."""
# How a document of peers begins, which lies among the manifests.
PEERS = b'{"members"'
STOPS = frozenset({"schedule.stop", "schedule.prune"})


@dataclass(frozen=True)
class Dump:
    """Every entry under one prefix, as of one moment."""

    keys: Keys
    entries: Mapping[str, Entry]

    def tree(self, family: str, kind: type[T]) -> dict[str, tuple[Entry, T]]:
        """The records of a family, decoded, by key."""
        prefix = self.keys.tree(family)
        return {
            key: (entry, codec.decode(kind, entry.value, key))  # type: ignore[type-var]
            for key, entry in self.entries.items()
            if key.startswith(prefix) and not is_sentinel(key)
        }

    @cached_property
    def pods(self) -> dict[tuple[str, str, str], tuple[Entry, Pod]]:
        """Pods by (owner, node, instance)."""
        return {self.keys.pod_parts(key): found for key, found in self.tree("pods", Pod).items()}

    @cached_property
    def intents(self) -> dict[Place, tuple[Entry, Intent]]:
        """Intents by place."""
        return {self.keys.intent_parts(key): found for key, found in self.tree("intent", Intent).items()}

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """Manifests by their digest, without the documents of peers beside them (R29)."""
        return {
            self.keys.last_part(key): codec.decode(Manifest, entry.value, key)
            for key, entry in self.entries.items()
            if key.startswith(self.keys.manifest("")) and not entry.value.startswith(PEERS)
        }

    @cached_property
    def rcs(self) -> dict[str, ReplicationController]:
        """Replication controllers by id."""
        return {rc.id: rc for _, rc in self.tree("rcs", ReplicationController).values()}

    @cached_property
    def daemonsets(self) -> dict[str, DaemonSet]:
        """Daemon sets by id."""
        return {each.id: each for _, each in self.tree("daemonsets", DaemonSet).values()}

    @property
    def owners(self) -> dict[str, ReplicationController | DaemonSet]:
        """Everything that may own pods, by id."""
        return {**self.rcs, **self.daemonsets}

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """Jobs, which own the pods of their members, by id."""
        return {each.id: each for _, each in self.tree("jobs", Job).values()}

    @cached_property
    def held(self) -> dict[str, Service]:
        """Services that a deployment changes, which own the pods of their hooks, by id."""
        live = self.tree("deployments", Deployment)
        found = [service for _, service in self.tree("services", Service).values()]
        return {each.id: each for each in found if self.keys.record("deployments", each.deployment) in live}

    @cached_property
    def audits(self) -> list[tuple[int, Audit]]:
        """All audit records with the index of the transaction that wrote them, in that order."""
        found = self.tree("audit", Audit).values()
        return sorted(((entry.create_index, audit) for entry, audit in found), key=lambda pair: pair[0])

    @cached_property
    def stops(self) -> dict[int, str]:
        """The farms whose schedules deleted jobs of theirs, by the index of the transaction."""
        return {index: audit.actor for index, audit in self.audits if audit.action in STOPS}


def violations(dump: Dump) -> list[str]:
    """Everything that is wrong at any moment, whatever is still to be done."""
    checks: list[Callable[[Dump], Iterable[str]]] = [
        one_owner_a_place,
        pods_and_intents_agree,
        audit_adds_up,
        audit_is_in_the_change,
        fenced_out_stays_out,
        reservations_fit,
        names_are_unique,
        services_name_who_is_there,
        app_invariants.marks_are_told,
        app_invariants.revisions_are_there,
    ]
    return [f"{check.__name__}: {line}" for check in checks for line in check(dump)]


def unfinished(dump: Dump) -> list[str]:
    """What is still to be done: owners whose pods are not exactly as many, as new, where they should be."""
    lines = []
    for rc in dump.rcs.values():
        mine = [pod for (owner, _, _), (_, pod) in dump.pods.items() if owner == rc.id]
        if len(mine) != rc.replicas_desired:
            lines.append(f"{rc.name}: {len(mine)} pods, expected {rc.replicas_desired}")
        if old := sum(pod.manifest != rc.manifest for pod in mine):
            lines.append(f"{rc.name}: {old} pods with another manifest")
    return [*lines, *_uneven(dump), *_moving(dump)]


def _uneven(dump: Dump) -> Iterable[str]:
    """Daemon sets that lack a pod on a node that fits, have one too many, or an old one."""
    for each in dump.daemonsets.values():
        mine = {node: pod for (owner, node, _), (_, pod) in dump.pods.items() if owner == each.id}
        fitting = {
            dump.keys.last_part(key)
            for key, (_, node) in dump.tree("nodes", Node).items()
            if node.drain is None and parse(each.node_selector).matches(node.labels)
        }
        if mine.keys() != fitting:
            yield f"{each.name}: lacks {sorted(fitting - mine.keys())}, has {sorted(mine.keys() - fitting)}"
        if old := sum(pod.manifest != each.manifest for pod in mine.values()):
            yield f"{each.name}: {old} pods with another manifest"


def _moving(dump: Dump) -> Iterable[str]:
    """Moves and drains that are not over, and pods that a dynamic controller should move."""
    for key, (_, work) in dump.tree("work", Work).items():
        if work.transfer is not None:
            yield f"{key}: a move is under way"
    nodes = {dump.keys.last_part(key): node for key, (_, node) in dump.tree("nodes", Node).items()}
    for name, node in nodes.items():
        if node.drain is not None and node.drain.stage != "done":
            yield f"{name}: its drain is at {node.drain.stage}"
    for rc in (rc for rc in dump.rcs.values() if rc.strategy == "dynamic"):
        for owner, name, _ in dump.pods:
            if owner == rc.id and not parse(rc.node_selector).matches(nodes[name].labels):
                yield f"{rc.name}: the pod on {name} should move"


def services_name_who_is_there(dump: Dump) -> Iterable[str]:
    """A service of several owners names none that is gone; the last one stays named."""
    for _, service in dump.tree("services", Service).values():
        known = [dump.keys.record(*each.split("/", 1)) for each in service.active]
        if len(known) > 1 and (gone := [key for key in known if key not in dump.entries]):
            yield f"{service.name} names others and {', '.join(gone)}, which does not exist"


def one_owner_a_place(dump: Dump) -> Iterable[str]:
    """No instance of a node belongs to two owners; none belongs to nobody."""
    owners = Counter((node, instance) for _, node, instance in dump.pods)
    yield from (f"{place} has {count} owners" for place, count in owners.items() if count > 1)
    known = {**dump.owners, **dump.held, **dump.jobs}
    yield from (f"{key} has no owner" for key in dump.pods if key[0] not in known)


def pods_and_intents_agree(dump: Dump) -> Iterable[str]:
    """A pod without intent never starts, which is meant of one that is done; one without pod never ends."""
    for (owner, *place), (_, pod) in dump.pods.items():
        found = dump.intents.get((place[0], place[1]))
        if found is None:
            if not pod.done:
                yield f"pod {owner} {place} has no intent"
        elif (found[1].owner, found[1].manifest) != (owner, pod.manifest):
            yield f"pod {owner} {place} says {pod.manifest[:8]}, its intent {found[1]}"
    for (node, instance), (_, intent) in dump.intents.items():
        if (intent.owner, node, instance) not in dump.pods:
            yield f"intent {node}/{instance} of {intent.owner} has no pod"


def audit_adds_up(dump: Dump) -> Iterable[str]:
    """Played back in the order of commits, the records give the pods tree exactly, nothing twice."""
    standing: set[tuple[str, str]] = set()
    for index, audit in dump.audits:
        placed, removed = _each(audit, audit.placed), _each(audit, audit.removed)
        yield from (f"at {index} placed again: {pod}" for pod in placed if pod in standing)
        yield from (f"at {index} removed, but not there: {pod}" for pod in removed if pod not in standing)
        standing = (standing - set(removed)) | set(placed)
        for pod in _each(audit, audit.relabelled):
            if pod not in standing:
                yield f"at {index} changed, but not there: {pod}"
        counted = _count(audit.after) - _count(audit.before)
        if counted != len(placed) - len(removed):
            yield f"at {index} counts {counted:+}, lists {len(placed)} placed and {len(removed)} removed"
    real = {(owner, f"{node}/{instance}") for owner, node, instance in dump.pods}
    yield from (f"not in the audit: {pod}" for pod in sorted(real - standing))
    yield from (f"only in the audit: {pod}" for pod in sorted(standing - real))


def audit_is_in_the_change(dump: Dump) -> Iterable[str]:
    """One record a transaction, in the very transaction that changed the pod, and never rewritten.

    A schedule's worker also deletes jobs, each of which has a record of its own.
    """
    at: dict[int, Audit] = {}
    for index, audit in dump.audits:
        if index in at and not _by_schedule(audit, index, dump):
            yield f"two audit records at {index}"
        if index not in at or audit.placed or audit.removed or audit.relabelled:
            at[index] = audit
    for key, (entry, _) in dump.tree("audit", Audit).items():
        if entry.create_index != entry.modify_index:
            yield f"{key} was rewritten"
    for (owner, node, instance), (entry, _) in dump.pods.items():
        created, changed = at.get(entry.create_index), at.get(entry.modify_index)
        pod = owner, f"{node}/{instance}"
        if created is None or pod not in _each(created, created.placed):
            yield f"pod {pod} was created without a record at {entry.create_index}"
        if changed is None or pod not in _each(changed, changed.placed + changed.relabelled):
            yield f"pod {pod} was changed without a record at {entry.modify_index}"
    for (node, instance), (entry, intent) in dump.intents.items():
        changed, pod = at.get(entry.modify_index), (intent.owner, f"{node}/{instance}")
        if changed is None or pod not in _each(changed, changed.placed + changed.relabelled):
            yield f"intent {node}/{instance} was changed without a record at {entry.modify_index}"


def fenced_out_stays_out(dump: Dump) -> Iterable[str]:
    """After the present claim of an item, nobody but its holder changed the item's pods (R12)."""
    for key, entry in dump.entries.items():
        kind, item, mutation = (
            dump.keys.lock_parts(key) if key.startswith(dump.keys.tree("locks")) else ("", "", True)
        )
        if not kind or mutation:
            continue
        holder = Holder.parse(entry.value)
        for index, audit in dump.audits:
            foreign = audit.actor.startswith("farm/") and audit.actor != f"farm/{holder.id}"
            if audit.id != item or index <= entry.modify_index or not foreign:
                continue
            if not _by_schedule(audit, index, dump):
                since = f"{holder.id} owns it since {entry.modify_index}"
                yield f"{audit.actor} wrote {audit.action} at {index}, {since}"


def _by_schedule(audit: Audit, index: int, dump: Dump) -> bool:
    """Whether a transaction is a schedule's that stops or prunes jobs: its claim is the fence there."""
    return dump.stops.get(index) == audit.actor and audit.action in {*STOPS, "job.mark-deleted"}


def reservations_fit(dump: Dump) -> Iterable[str]:
    """Every reservation is that of a pod or of a move, and each pod that asks for something has one (R17)."""
    reserved = {
        (dump.keys.last_part(key), instance)
        for key, (_, book) in dump.tree("reserved", Reserved).items()
        for instance in book.instances
    }
    asking = {sha for sha, manifest in dump.manifests.items() if asked(manifest)}
    places = {
        (node, instance)
        for (_, node, instance), (_, pod) in dump.pods.items()
        if pod.manifest in asking and not pod.done  # one that ended for good gave its room back (R29)
    }
    moves = {work.transfer.new for _, work in dump.tree("work", Work).values() if work.transfer is not None}
    yield from (f"{place} is reserved for nobody" for place in sorted(reserved - places - moves))
    yield from (f"{place} has no reservation" for place in sorted(places - reserved))


def names_are_unique(dump: Dump) -> Iterable[str]:
    """Each owner of pods is led to by its name, and each name leads to one."""
    families: dict[str, Iterable[ReplicationController | DaemonSet]] = {
        "rcs": dump.rcs.values(),
        "daemonsets": dump.daemonsets.values(),
    }
    for family, records in families.items():
        prefix = dump.keys.name(family, "")
        named = {key[len(prefix) :]: e.value for key, e in dump.entries.items() if key.startswith(prefix)}
        for each in records:
            if named.get(each.name) != codec.encode(each.id):
                yield f"name {each.name} leads to {named.get(each.name)!r}, expected {each.id}"
        for name in named.keys() - {each.name for each in records}:
            yield f"name {name} leads to nothing in {family}"


def _each(audit: Audit, places: list[str]) -> list[tuple[str, str]]:
    """(owner, place) of each pod; a record of an item that owns none names the owner (R25)."""
    parts = [place.split("/") for place in places]
    return [(owner[0] if owner else audit.id, f"{node}/{instance}") for *owner, node, instance in parts]


def _count(fields: Mapping[str, Any]) -> int:
    return int(fields.get("pods", 0))
