"""The store at one moment: what is in it, and what is wrong with it whatever is still to be done. Pure.

What must come true in the end is in ``goals.py`` and ``daemonset_goals.py``, which ask here who may stand
where.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from store.apps import App, DispatchState
from store.daemonsets import DaemonSet
from store.deployments import Deployment
from store.entry import Entry
from store.keys import Keys, is_sentinel
from store.manifests import Manifest
from store.nodes import Agent, Node, Reserved, effective_labels
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Intent, Reality, passes
from store.rollouts import Rollout
from store.selectors import parse
from store.services import Service
from store.status import Status
from store.work import Work
from tests.fault.app_invariants import marks_are_told, revisions_are_there, states
from tests.fault.invariants import Dump, fenced_out_stays_out, names_are_unique, one_owner_a_place
from tests.stateful.rollout_rules import ENDS

Place = tuple[str, str]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Sight:
    """Reads records of one moment; ``tampered`` are places whose intent a person changed by hand."""

    keys: Keys
    entries: dict[str, Entry]
    tampered: frozenset[Place] = frozenset()

    @cached_property
    def dump(self) -> Dump:
        audit = self.keys.tree("audit")
        return Dump(
            self.keys,
            {
                key: entry
                for key, entry in self.entries.items()
                if not key.startswith(audit)
                or (self.keys.is_audit_record(key) and key != self.keys.checkpoint)
            },
        )

    @cached_property
    def rcs(self) -> dict[str, ReplicationController]:
        return self.dump.rcs

    @cached_property
    def daemonsets(self) -> dict[str, DaemonSet]:
        return self.dump.daemonsets

    @cached_property
    def rollouts(self) -> dict[str, Rollout]:
        return {each.id: each for _, each in self.dump.tree("rollouts", Rollout).values()}

    @cached_property
    def deployments(self) -> dict[str, Deployment]:
        return {each.id: each for _, each in self.dump.tree("deployments", Deployment).values()}

    @cached_property
    def services(self) -> dict[str, Service]:
        return {each.name: each for _, each in self.dump.tree("services", Service).values()}

    @cached_property
    def apps(self) -> dict[str, tuple[App, DispatchState]]:
        """Apps by name, and how far each is."""
        return states(self.dump)

    @cached_property
    def pods(self) -> dict[tuple[str, str, str], Pod]:
        """Pods by (owner, node, instance)."""
        return {key: pod for key, (_, pod) in self.dump.pods.items()}

    @cached_property
    def intents(self) -> dict[Place, Intent | None]:
        """Intents by place; None where one does not decode."""
        prefix = self.keys.tree("intent")
        found: dict[Place, Intent | None] = {}
        for key, entry in self.entries.items():
            if key.startswith(prefix) and not is_sentinel(key):
                try:
                    found[self.keys.intent_parts(key)] = msgspec.json.decode(entry.value, type=Intent)
                except msgspec.DecodeError:
                    found[self.keys.intent_parts(key)] = None
        return found

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {self.keys.last_part(k): node for k, (_, node) in self.dump.tree("nodes", Node).items()}

    @cached_property
    def agents(self) -> dict[str, Agent]:
        return {self.keys.last_part(k): a for k, (_, a) in self.dump.tree("agents", Agent).items()}

    @cached_property
    def work(self) -> dict[str, Work]:
        """Work by ``<kind>/<id>``."""
        prefix = len(self.keys.tree("work"))
        return {key[prefix:]: work for key, (_, work) in self.dump.tree("work", Work).items()}

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        return {self.keys.last_part(k): m for k, (_, m) in self.dump.tree("manifests", Manifest).items()}

    @cached_property
    def reserved(self) -> dict[str, Reserved]:
        return {self.keys.last_part(k): b for k, (_, b) in self.dump.tree("reserved", Reserved).items()}

    def items(self) -> Iterable[tuple[str, str, dict[str, str]]]:
        """(kind, id, labels) of everything that a farm must own."""
        yield from (("rcs", rc.id, rc.labels) for rc in self.rcs.values())
        yield from (("daemonsets", each.id, each.labels) for each in self.daemonsets.values())
        yield from (("rollouts", each.id, each.labels) for each in self.rollouts.values())
        yield from (("deployments", each.id, each.labels) for each in self.deployments.values())
        yield from (("nodes", node, {}) for node in self.nodes)
        yield from (("apps", name, app.labels) for name, (app, _) in self.apps.items())

    def pods_of(self, owner: str) -> dict[Place, Pod]:
        return {(node, instance): pod for (at, node, instance), pod in self.pods.items() if at == owner}

    def status(self, kind: str, item: str) -> Status | None:
        entry = self.entries.get(self.keys.status(kind, item))
        return None if entry is None else msgspec.json.decode(entry.value, type=Status)

    def under(self, family: str) -> list[str]:
        """Keys of a family's records."""
        prefix = self.keys.tree(family)
        return [key for key in self.entries if key.startswith(prefix) and not is_sentinel(key)]

    # -- who may stand where -------------------------------------------------------------------
    def takes(self, node: str, selector: str) -> bool:
        """Whether a node takes new pods of a selector; nobody here tolerates a taint."""
        record, agent = self.nodes[node], self.agents.get(node)
        if agent is None or record.cordoned or record.drain is not None or self.lost(node):
            return False
        return not record.taints and self.fits_labels(node, selector)

    def fits_labels(self, node: str, selector: str) -> bool:
        record = self.nodes.get(node)
        labels = effective_labels(record, self.agents.get(node))
        return record is not None and parse(selector).matches(labels)

    def free(self, node: str, instance: str = "") -> float:
        """How much cpu is left; what ``instance`` reserved counts as free."""
        book = self.reserved.get(node, Reserved()).instances
        used = sum(amounts.get("cpu", 0.0) for at, amounts in book.items() if at != instance)
        return self.nodes[node].capacity.get("cpu", 0.0) - used + ROUNDING

    def grows_into(self, place: Place, sha: str) -> bool:
        """Whether a pod may take a manifest where it stands: asking for no more than before always fits."""
        node, instance = place
        asked = self.asked(sha)
        had = self.reserved.get(node, Reserved()).instances.get(instance, {}).get("cpu", 0.0)
        return asked <= had or asked <= self.free(node, instance)

    def asked(self, sha: str) -> float:
        return self.manifests[sha].resources.get("cpu", 0.0) if sha in self.manifests else 0.0

    def taken(self, node: str, instance: str) -> bool:
        return (node, instance) in self.intents or any(at[1:] == (node, instance) for at in self.pods)

    def reality(self, place: Place) -> Reality | None:
        entry = self.entries.get(self.keys.reality(*place))
        return msgspec.json.decode(entry.value, type=Reality) if entry is not None else None

    def serves(self, place: Place, pod: Pod) -> bool:
        reality, intent = self.reality(place), self.intents.get(place)
        if reality is not None and intent is not None and reality.restart < intent.restart:
            return False
        return passes(reality, pod.manifest)

    def outdated(self, owner: ReplicationController | DaemonSet) -> list[Place]:
        """Pods of another manifest than their owner's, and those that it has yet to restart (R28)."""
        intents = self.intents
        return [
            place
            for place, pod in self.pods_of(owner.id).items()
            if pod.manifest != owner.manifest
            or ((intent := intents.get(place)) is not None and intent.restart < owner.restart)
        ]

    def lost(self, node: str) -> bool:
        work = self.work.get(f"nodes/{node}")
        return work is not None and work.lost_since > 0

    # -- at every moment -----------------------------------------------------------------------
    def violations(self) -> list[str]:
        checks = [
            one_owner_a_place,
            fenced_out_stays_out,
            names_are_unique,
            marks_are_told,
            revisions_are_there,
        ]
        found = [f"{check.__name__}: {line}" for check in checks for line in check(self.dump)]
        return [
            *found,
            *self._agree(),
            *self._booked(),
            *self._capacity(),
            *self._bodies(),
            *self._unknown_fields(),
            *self._rollouts(),
        ]

    def _agree(self) -> Iterable[str]:
        """Every pod's intent names its owner and its manifest, every intent has its pod."""
        at = {(node, instance): (owner, pod) for (owner, node, instance), pod in self.pods.items()}
        for place in sorted((at.keys() | self.intents.keys()) - self.tampered):
            said, intent = at.get(place), self.intents.get(place)
            if said is not None and said[1].done and intent is None:
                continue  # it ended well, and its node has nothing of it any more
            if (
                said is None
                or intent is None
                or (intent.owner, intent.manifest) != (said[0], said[1].manifest)
            ):
                yield f"at {place} the pod is {said}, the intent {intent}"

    def _booked(self) -> Iterable[str]:
        """Whoever asks for room has exactly that reserved, and nobody else has (R17)."""
        moving = {w.transfer.new for w in self.work.values() if w.transfer is not None}
        booked = {
            (node, instance): amounts
            for node, book in self.reserved.items()
            for instance, amounts in book.instances.items()
        }
        needed = {
            (n, i): self.manifests[pod.manifest].resources
            for (_, n, i), pod in self.pods.items()
            if pod.manifest in self.manifests and self.manifests[pod.manifest].resources
        }
        for place in sorted(booked.keys() - needed.keys() - moving):
            yield f"{place} is reserved for nobody"
        for place, amounts in sorted(needed.items()):
            if booked.get(place) != amounts:
                yield f"{place} asks for {amounts}, reserved is {booked.get(place)}"

    def _capacity(self) -> Iterable[str]:
        """Never over capacity: neither what is reserved nor what the pods ask for (R17)."""
        books: dict[str, float] = defaultdict(float)
        pods: dict[str, float] = defaultdict(float)
        for node, book in self.reserved.items():
            books[node] += sum(amounts.get("cpu", 0.0) for amounts in book.instances.values())
        for (_, node, _), pod in self.pods.items():
            pods[node] += self.asked(pod.manifest)
        for what, used in (("reserved", books), ("asked for by pods", pods)):
            for node, cpu in used.items():
                if node in self.nodes and cpu > self.nodes[node].capacity.get("cpu", 0.0) + ROUNDING:
                    yield f"{node}: {cpu} cpu {what}, it has {self.nodes[node].capacity}"

    def _bodies(self) -> Iterable[str]:
        """No manifest is collected that anything refers to (R24); what hands wrote does not count."""
        wanted = {rc.manifest: f"rc {rc.name}" for rc in self.rcs.values()}
        wanted |= {each.manifest: f"daemonset {each.name}" for each in self.daemonsets.values()}
        wanted |= {pod.manifest: f"pod {key}" for key, pod in self.pods.items()}
        wanted |= {each.from_manifest: f"rollout {each.name}" for each in self.rollouts.values()}
        yield from (
            f"the manifest {sha[:8]} of {wanted[sha]} is gone"
            for sha in wanted.keys() - self.manifests.keys()
        )

    def _rollouts(self) -> Iterable[str]:
        """A rollout ends exactly once, and nobody is managed by one that is over."""
        ends = Counter(audit.id for _, audit in self.dump.audits if audit.action in ENDS)
        yield from (f"rollout {each} ended {count} times" for each, count in ends.items() if count > 1)
        yield from (f"rollout {each} ended and goes on" for each in ends.keys() & self.rollouts.keys())
        for rc in self.rcs.values():
            if rc.managed_by.removeprefix("rollouts/") in ends:
                yield f"{rc.name} is managed by {rc.managed_by}, which is over"

    def _unknown_fields(self) -> Iterable[str]:
        """What a newer version wrote survives; all records that people made bear such a field."""
        for family, field in (("nodes", "x-rack"), ("rcs", "x-team"), ("daemonsets", "x-team")):
            for key in self.under(family):
                value = self.entries[key].value
                found = msgspec.json.decode(value)
                if field not in found and "part_of" not in found:
                    yield f"{key} lost {field}: {value!r}"
