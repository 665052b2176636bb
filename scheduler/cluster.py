"""The machines as one plan of many services sees them (uncloud ``scheduler.ClusterState``).

A plan asks which machines a service may use, takes places one after the other, and each later service sees
the load and the room that the earlier ones left. Sets of machines are bits of one number, kept for each
distinct rule, so that a plan for a thousand services judges a machine once for a rule and not for a service.
What must never break: a machine is eligible here exactly if ``scheduler.decide`` has no standing reason
against it, and equal input gives equal places.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from scheduler.constraints import LabelRule, Requirement, compile_request, tolerates
from scheduler.decide import allocation
from scheduler.errors import NoMachine
from scheduler.feasibility import TOLERANCE, room_reasons, standing_reasons
from scheduler.fleet import populated
from scheduler.model import FleetView, NodeView, PlacementRequest, PodView
from scheduler.rules import Admission, PodAffinityRule, pod_affinity_rules
from store import codec
from store.features import lacking, needed
from store.manifests import PORT_RESOURCE, Toleration, asked
from store.nodes import NodeVolume
from store.selectors import Selector

# The machines that satisfy single rules, as bits of one number: each rule is judged once on each machine.
#
# The sets say of one rule what ``feasibility.standing_reasons`` says of a machine; a property of the tests
# holds both together. What an absent agent alone could state counts as satisfied (R21).

Machines = int
"""A set of machines: bit n stands for the machine with that place in the order of a plan."""


class RuleSets:
    """The sets of one view. ``bits`` holds each machine's bit.

    ``open`` machines have no reason of their own against new pods, ``leaving`` ones against any pod, nor have
    ``draining`` ones, but against those of the system. ``broken``: nothing is known, so nothing changes.
    """

    def __init__(self, view: FleetView, bits: Mapping[str, Machines]) -> None:
        self._view = view
        self._bits = bits
        self.broken = self._where(lambda node: node.broken)
        self.all = self._where(lambda node: not node.broken)
        self.leaving = self._where(lambda node: node.presence == "lost" or node.drain not in ("", "pods"))
        self.draining = self._where(lambda node: node.drain == "pods")
        self.open = self._where(
            lambda node: not node.cordoned and not node.drain and node.presence == "present"
        )
        self._labels: dict[str, tuple[dict[str | None, Machines], Machines]] = {}
        self._rules: dict[object, Machines] = {}

    def selected(self, selector: Selector) -> Machines:
        """The machines that a selector matches."""
        found = self._rules.get(selector)
        if found is None:
            found = self._rules[selector] = self._where(
                lambda node: all(
                    part.matches(node.labels) or (not node.facts_known and part.key not in node.labels)
                    for part in selector.requirements
                )
            )
        return found

    def fitting(self, rule: LabelRule) -> Machines:
        """The machines whose label satisfies a constraint."""
        if rule.label not in self._labels:
            self._labels[rule.label] = self._by_value(rule.label)
        values, unknown = self._labels[rule.label]
        return unknown | sum(machines for value, machines in values.items() if rule.fits(value))

    def tolerating(self, tolerations: Sequence[Toleration]) -> Machines:
        """The machines without a taint that keeps pods with these tolerations out."""
        key = ("taints", codec.encode(tolerations))
        if key not in self._rules:
            accepted = list(tolerations)
            self._rules[key] = self._where(
                lambda node: all(
                    taint.effect != "no-schedule" or tolerates(accepted, taint) for taint in node.taints
                )
            )
        return self._rules[key]

    def able(self, need: str) -> Machines:
        """The machines whose agents have a feature, or whose features are unknown."""
        key = ("feature", need)
        if key not in self._rules:
            self._rules[key] = self._where(
                lambda node: not node.facts_known or not lacking([need], node.features)
            )
        return self._rules[key]

    def near(self, rule: PodAffinityRule) -> Machines:
        """The machines that have the pods with which a rule keeps others; all, where no machine has any."""
        for node in self._view.values():
            rule.observe(node, counts_as_domain=True)
        return self._where(lambda node: rule.admission(rule.domain(node)) is Admission.OPEN)

    def _by_value(self, label: str) -> tuple[dict[str | None, Machines], Machines]:
        """The machines by the value of a label (None: without it), and those with unknown labels."""
        found: dict[str | None, Machines] = {}
        unknown = 0
        for name, node in self._view.items():
            if node.facts_known or label in node.labels:
                value = node.labels.get(label)
                found[value] = found.get(value, 0) | self._bits[name]
            else:
                unknown |= self._bits[name]
        return found, unknown

    def _where(self, holds: Callable[[NodeView], bool]) -> Machines:
        found = 0
        for name, node in self._view.items():
            if holds(node):
                found |= self._bits[name]
        return found


_MANY_REASONS = 8
PLANNED = "planned "
"""Before the number of a pod that a plan placed, where pods have their instances: no instance begins so."""


@dataclass(frozen=True, slots=True)
class Suitable:
    """The machines that may get a pod, and those that may keep one."""

    eligible: Machines
    retained: Machines


class ClusterState:
    """One view of the fleet with what a plan adds to it. Ties are broken by ``seed``, the plan's id.

    ``volumes`` are those that stand in the nodes' records, those of absent and lost machines included.
    """

    def __init__(
        self, view: FleetView, volumes: Mapping[str, Mapping[str, NodeVolume]] | None = None, seed: str = ""
    ) -> None:
        self.view = view
        self.volumes = volumes or {}
        known = {*view, *self.volumes}
        self.names = tuple(sorted(known, key=lambda name: (_drawn(seed, name), name)))
        self._bits = {name: 1 << at for at, name in enumerate(self.names)}
        self._load = {name: view[name].live for name in view}
        self._levels: dict[int, Machines] = {}
        for name, load in self._load.items():
            self._levels[load] = self._levels.get(load, 0) | self._bits[name]
        self._used: dict[str, dict[str, float]] = {}
        self._placed: dict[str, list[str]] = {}
        self._sets = RuleSets(view, self._bits)
        self._suitable: dict[object, Suitable] = {}
        self._scheduled: dict[str, Machines] = {}

    def bits(self, names: Collection[str]) -> Machines:
        """The set of these machines; unknown names are left out."""
        return sum({self._bits[name] for name in names if name in self._bits})

    def bit(self, name: str) -> Machines:
        """The set of one machine; empty if it is unknown."""
        return self._bits.get(name, 0)

    def listed(self, machines: Machines) -> Iterator[str]:
        """The names in a set, in the order of this plan."""
        while machines:
            lowest = machines & -machines
            yield self.names[lowest.bit_length() - 1]
            machines ^= lowest

    def suitable(self, request: PlacementRequest) -> Suitable:
        """The machines for a request, by everything but room.

        Raises:
            PlacementInvalid: the manifest's placement block cannot work.
        """
        placement, system = request.manifest.placement, request.manifest.system
        needs = needed(request.manifest)
        rules = msgspec.json.encode([placement.constraints, placement.tolerations, placement.pod_affinity])
        key = (request.selector, rules, system, needs, request.among)
        found = self._suitable.get(key)
        if found is None:
            found = self._suitable[key] = self._judged(compile_request(request), needs)
        return found

    def _judged(self, requirement: Requirement, needs: Collection[str]) -> Suitable:
        request, sets = requirement.request, self._sets
        allowed = sets.all if request.among is None else self.bits(request.among) & sets.all
        if request.selector.requirements:
            allowed &= sets.selected(request.selector)
        for rule in requirement.constraints:
            allowed &= sets.fitting(rule)
        retained = allowed & ~sets.leaving & ~(0 if request.manifest.system else sets.draining)
        eligible = retained & sets.open & sets.tolerating(request.manifest.placement.tolerations)
        for need in needs:
            eligible &= sets.able(need)
        for near in pod_affinity_rules(requirement):
            eligible &= sets.near(near)
        return Suitable(eligible, retained | (sets.broken if request.among is None else 0))

    def having(self, volume: str) -> Machines:
        """The machines where a volume is, or will be by this plan."""
        there = self.bits([name for name, volumes in self.volumes.items() if volume in volumes])
        return there | self._scheduled.get(volume, 0)

    def schedule(self, volume: str, machines: Machines) -> None:
        """Note that the plan makes a volume on these machines."""
        self._scheduled[volume] = self._scheduled.get(volume, 0) | machines

    def load(self, machine: str) -> int:
        """How many pods a machine has, those of the plan included."""
        return self._load[machine]

    def room(self, machine: str, amounts: Mapping[str, float]) -> float:
        """How many more pods with these amounts fit on a machine; infinity without amounts."""
        node = self.view[machine]
        used = self._used.get(machine, node.used)
        return min(
            (
                math.floor((_capacity(node, name) - used.get(name, 0.0) + TOLERANCE) / amount)
                for name, amount in amounts.items()
                if amount > 0
            ),
            default=math.inf,
        )

    def reserve(self, machine: str, amounts: Mapping[str, float], owner: str = "") -> None:
        """Count one more pod of the plan on a machine."""
        self._placed.setdefault(machine, []).append(owner)
        bit, load = self._bits[machine], self._load[machine]
        self._load[machine] = load + 1
        self._levels[load] ^= bit
        self._levels[load + 1] = self._levels.get(load + 1, 0) | bit
        if amounts:
            used = self._used.setdefault(machine, dict(self.view[machine].used))
            for name, amount in amounts.items():
                used[name] = used.get(name, 0.0) + amount

    def emptiest(self, machines: Machines, amounts: Mapping[str, float]) -> Iterator[str]:
        """The machines of a set that have room, those with the fewest pods first."""
        for load in sorted(self._levels):
            for name in self.listed(machines & self._levels[load]):
                if not amounts or self.room(name, amounts) >= 1:
                    yield name

    def best(self, request: PlacementRequest, machines: Machines, count: int) -> list[str]:
        """Machines for up to ``count`` more pods by all rules, also those across machines; some come twice.

        Pods that the plan placed before are counted, for their load and for the rules.
        """
        view = dict(self.view)
        for name, placed in self._placed.items():
            node = view[name]
            pods = {**node.pods, **{f"{PLANNED}{at}": PodView(owner) for at, owner in enumerate(placed)}}
            used = self._used.get(name, node.used)
            view[name] = msgspec.structs.replace(populated(node, pods), used=used)
        asked_of = msgspec.structs.replace(request, among=frozenset(self.listed(machines)))
        return [place.node for place in allocation(asked_of, count, view).assignments]

    def no_machine(self, request: PlacementRequest, service: str, machines: Machines = -1) -> NoMachine:
        """The error that no machine takes a service, with the reasons; ``machines`` are those that were
        candidates.

        Machines with the same reasons are told together, and of many reasons the first: the message is kept
        in records, too.
        """
        requirement = compile_request(request)
        amounts = asked(request.manifest)
        alike: dict[str, list[str]] = {}
        for name in sorted(self.view):
            node = self.view[name]
            found = [each.text for each in standing_reasons(requirement, node)]
            # Each machine has a name of its own, and would be alone with it.
            reasons = [
                text.partition(", but ")[0] if text.endswith(f" is {name!r}") else text for text in found
            ]
            reasons += [each.text for each in room_reasons(requirement, node)]
            if not reasons and amounts and self.room(name, amounts) < 1:
                reasons.append("what is left of it is used by other services of this plan")
            if not reasons and not machines & self._bits[name]:
                reasons.append("does not have the volumes that the service mounts")
            if reasons:
                alike.setdefault(", ".join(reasons), []).append(name)
        told = [
            f"{first}{f' and {len(others)} more' if others else ''}: {why}"
            for why, (first, *others) in list(alike.items())[:_MANY_REASONS]
        ]
        if left := sum(map(len, list(alike.values())[_MANY_REASONS:])):
            told.append(f"{left} more for other reasons")
        why = "; ".join(told) or "there are no machines"
        return NoMachine(f"services.{service}: no machine can take it: {why}", service=service)


def _capacity(node: NodeView, resource: str) -> float:
    """What a node has of a resource: each published port once."""
    return node.capacity.get(resource, 1.0 if resource.startswith(PORT_RESOURCE) else 0.0)


def _drawn(seed: str, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest() if seed else b""
