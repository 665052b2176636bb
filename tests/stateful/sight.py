"""The store at one moment: what is wrong with it, and what is still to be done. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from store.entry import Entry
from store.intent import Intent
from store.keys import Keys, is_sentinel
from store.manifests import Manifest
from store.nodes import Agent, Node, Reserved, effective_labels
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Reality, healthy
from store.selectors import parse
from store.status import Status
from store.work import Work
from tests.fault.invariants import Dump, fenced_out_stays_out, names_are_unique, one_owner_a_place

Place = tuple[str, str]


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

    def items(self) -> Iterable[tuple[str, str]]:
        """(kind, id) of everything that a farm must own."""
        yield from (("rcs", rc) for rc in self.rcs)
        yield from (("nodes", node) for node in self.nodes)

    def pods_of(self, owner: str) -> dict[Place, Pod]:
        return {(node, instance): pod for (at, node, instance), pod in self.pods.items() if at == owner}

    # -- at every moment -----------------------------------------------------------------------
    def violations(self) -> list[str]:
        checks = [one_owner_a_place, fenced_out_stays_out, names_are_unique]
        found = [f"{check.__name__}: {line}" for check in checks for line in check(self.dump)]
        return [*found, *self._agree(), *self._reservations(), *self._unknown_fields()]

    def _agree(self) -> Iterable[str]:
        """Every pod's intent names its owner and its manifest, every intent has its pod."""
        at = {(node, instance): (owner, pod) for (owner, node, instance), pod in self.pods.items()}
        for place in sorted((at.keys() | self.intents.keys()) - self.tampered):
            said, intent = at.get(place), self.intents.get(place)
            if (
                said is None
                or intent is None
                or (intent.owner, intent.manifest) != (said[0], said[1].manifest)
            ):
                yield f"at {place} the pod is {said}, the intent {intent}"

    def _reservations(self) -> Iterable[str]:
        """Whoever asks for room has it reserved, and nobody else has (R17)."""
        moving = {w.transfer.new for w in self.work.values() if w.transfer is not None}
        booked = {(node, instance) for node, book in self.reserved.items() for instance in book.instances}
        asking = {sha for sha, manifest in self.manifests.items() if manifest.resources}
        needed = {(n, i) for (_, n, i), pod in self.pods.items() if pod.manifest in asking}
        yield from (f"{place} is reserved for nobody" for place in sorted(booked - needed - moving))
        yield from (f"{place} has no reservation" for place in sorted(needed - booked))
        for node, book in self.reserved.items():
            used = sum(amounts.get("cpu", 0.0) for amounts in book.instances.values())
            if node in self.nodes and used > self.nodes[node].capacity.get("cpu", 0.0) + 1e-9:
                yield f"{node} has {used} cpu reserved of {self.nodes[node].capacity}"

    def _unknown_fields(self) -> Iterable[str]:
        """What a newer version wrote survives every rewrite; all records bear such a field from the start."""
        for family, field in (("nodes", "x-rack"), ("rcs", "x-team")):
            for key, entry in self.entries.items():
                if key.startswith(self.keys.tree(family)) and not is_sentinel(key):
                    if field not in msgspec.json.decode(entry.value) and b"x-exempt" not in entry.value:
                        yield f"{key} lost {field}: {entry.value!r}"

    # -- in the end ----------------------------------------------------------------------------
    def unfinished(self, now: float) -> list[str]:
        """What should still change, or is not said as it is."""
        found = [line for rc in self.rcs.values() for line in self._rc(rc)]
        owners = {owner for owner, _, _ in self.pods} | {i.owner for i in self.intents.values() if i}
        found += [f"orphans of {owner}" for owner in sorted(owners - self.rcs.keys())]
        found += [f"the freeze of {key} lasts" for key in self._under("failsafe")]
        found += [f"{node} counts as lost" for node in self.agents if self._lost(node)]
        return [*found, *self._drains()]

    def _drains(self) -> Iterable[str]:
        """A node that nothing stands on any more is drained."""
        for node, record in self.nodes.items():
            holds = any(place[0] == node for place in self.intents)
            if record.drain is not None and not holds and record.drain.stage != "done":
                yield f"{node} is empty and its drain is not over: {record.drain}"

    def _rc(self, rc: ReplicationController) -> Iterable[str]:
        mine, status = self.pods_of(rc.id), self._status(rc.id)
        if rc.disabled:
            if status is None or status.state != "disabled":
                yield f"{rc.name} is disabled, its status says {status}"
            return
        outdated = [place for place, pod in mine.items() if pod.manifest != rc.manifest]
        cramped = [place for place in outdated if not self._room_to_grow(rc, place)]
        outdated = [place for place in outdated if place not in cramped]
        # A pod that stays although its node may not keep it is left alone, intent and all.
        alone = [place for place in mine if place in self.tampered and not self._may_keep(rc, place[0])]
        idle = [place for place, pod in mine.items() if not self._healthy(place, pod)]
        idle = [place for place in idle if place not in alone]
        misplaced = [place for place in mine if not self._may_stay(rc, place[0])]
        room = self.room(rc)
        if len(mine) > rc.replicas_desired or outdated or idle:
            yield f"{rc.name}: {len(mine)} of {rc.replicas_desired} pods, outdated {outdated}, idle {idle}"
        if len(mine) < rc.replicas_desired and room:
            yield f"{rc.name}: {len(mine)} of {rc.replicas_desired} pods, although there is room on {room}"
        if misplaced and room:
            yield f"{rc.name}: pods on {misplaced} may not stay, although there is room on {room}"
        if f"rcs/{rc.id}" in self.work and self.work[f"rcs/{rc.id}"].transfer is not None:
            yield f"{rc.name}: a move is under way: {self.work[f'rcs/{rc.id}'].transfer}"
        whole = len(mine) == rc.replicas_desired and not misplaced and not cramped and not alone
        yield from self._said(rc, status, len(mine), whole=whole)

    def _said(
        self, rc: ReplicationController, status: Status | None, placed: int, *, whole: bool
    ) -> Iterable[str]:
        if status is None:
            yield f"{rc.name} has no status"
        elif (status.desired, status.placed) != (rc.replicas_desired, placed):
            yield f"{rc.name}: {placed} of {rc.replicas_desired} placed, its status says {status}"
        elif whole and status.state != "converged":
            yield f"{rc.name} is converged, its status says {status}"
        elif not whole and status.state == "blocked" and not status.reason:
            yield f"{rc.name} is blocked without a reason: {status}"
        elif (not whole and status.state not in ("blocked", "progressing", "converged")) or (
            placed < rc.replicas_desired and status.state != "blocked"
        ):
            yield f"{rc.name} is short, its status says {status}"

    def room(self, rc: ReplicationController) -> list[str]:
        """Nodes that could take one more pod of a controller."""
        return sorted(node for node in self.nodes if self._may_take(rc, node) and self._fits(rc, node))

    def _may_take(self, rc: ReplicationController, node: str) -> bool:
        record, agent = self.nodes[node], self.agents.get(node)
        if agent is None or record.cordoned or record.drain is not None or self._lost(node):
            return False
        return parse(rc.node_selector).matches(effective_labels(record, agent))

    def _may_stay(self, rc: ReplicationController, node: str) -> bool:
        """A dynamic controller follows its selector; a drain moves everybody's pods."""
        record = self.nodes.get(node)
        if record is None or record.drain is not None:
            return record is None
        return self._fits_labels(rc, node) or rc.strategy == "static"

    def _may_keep(self, rc: ReplicationController, node: str) -> bool:
        return self._fits_labels(rc, node) and self.nodes[node].drain is None

    def _fits_labels(self, rc: ReplicationController, node: str) -> bool:
        record = self.nodes.get(node)
        labels = effective_labels(record, self.agents.get(node))
        return record is not None and parse(rc.node_selector).matches(labels)

    def _fits(self, rc: ReplicationController, node: str) -> bool:
        instances = {instance for at, instance in self.pods_of(rc.id) if at == node}
        if len(instances) >= rc.replicas_per_node:
            return False
        if rc.replicas_per_node == 1 and self._taken(node, rc.pod_id):
            return False
        book, manifest = self.reserved.get(node, Reserved()), self.manifests[rc.manifest]
        used = sum(amounts.get("cpu", 0.0) for amounts in book.instances.values())
        asked = manifest.resources.get("cpu", 0.0)
        return used + asked <= self.nodes[node].capacity.get("cpu", 0.0) + 1e-9

    def _room_to_grow(self, rc: ReplicationController, place: Place) -> bool:
        """Whether a pod may take its controller's manifest where it stands."""
        node, instance = place
        book, asked = self.reserved.get(node, Reserved()).instances, self.manifests[rc.manifest].resources
        grown = asked.get("cpu", 0.0) - book.get(instance, {}).get("cpu", 0.0)
        used = sum(amounts.get("cpu", 0.0) for amounts in book.values())
        return grown <= 0 or used + grown <= self.nodes[node].capacity.get("cpu", 0.0) + 1e-9

    def _taken(self, node: str, instance: str) -> bool:
        return (node, instance) in self.intents or any(at[1:] == (node, instance) for at in self.pods)

    def _healthy(self, place: Place, pod: Pod) -> bool:
        entry = self.entries.get(self.keys.reality(*place))
        reality = msgspec.json.decode(entry.value, type=Reality) if entry is not None else None
        return healthy(reality, pod.manifest)

    def _lost(self, node: str) -> bool:
        work = self.work.get(f"nodes/{node}")
        return work is not None and work.lost_since > 0

    def _status(self, rc: str) -> Status | None:
        entry = self.entries.get(self.keys.status("rcs", rc))
        return None if entry is None else msgspec.json.decode(entry.value, type=Status)

    def _under(self, family: str) -> list[str]:
        prefix = self.keys.tree(family)
        return [key for key in self.entries if key.startswith(prefix) and not is_sentinel(key)]
