"""The machines that satisfy single rules, as bits of one number: each rule is judged once on each machine.

The sets say of one rule what ``feasibility.standing_reasons`` says of a machine; a property of the tests
holds both together. What an absent agent alone could state counts as satisfied (R21).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler.affinity import PodAffinityRule
from scheduler.constraints import LabelRule
from scheduler.domains import Admission
from scheduler.model import FleetView, NodeView
from scheduler.requirement import tolerates
from store import codec
from store.features import lacking
from store.manifests import Toleration
from store.selectors import Selector

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
        """The machines whose agents can do something, or cannot be asked."""
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
        """The machines by the value of a label, None where they have none; and those where nobody knows."""
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
