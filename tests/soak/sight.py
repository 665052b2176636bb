"""One look at a fleet: the whole store at one moment, and the workloads that ran right before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from store import codec
from store.entry import Entry
from store.errors import RecordInvalid
from store.keys import is_sentinel
from store.manifests import Manifest
from store.nodes import Drain, Node
from store.reality import Intent, Reality
from store.selectors import parse
from tests.fault.invariants import Dump, Place
from tests.soak.processes import Workload

T = TypeVar("T")
PRESENT_SECONDS = 15.0


@dataclass(frozen=True)
class Sight:
    """What is true at the time ``at`` (seconds since the epoch).

    ``zones`` are the labels that agents state of their nodes, ``well_for`` how long each agent and each farm
    has been without a fault, in seconds.
    """

    at: float
    dump: Dump
    workloads: Collection[Workload]
    zones: Mapping[str, str]
    well_for: Mapping[str, float]

    @cached_property
    def realities(self) -> dict[Place, tuple[Entry, Reality]]:
        """Realities that decode, by place."""
        prefix, found = self.dump.keys.tree("reality"), {}
        for key, entry in self.dump.entries.items():
            if key.startswith(prefix) and not is_sentinel(key):
                try:
                    reality = codec.decode(Reality, entry.value, key)
                except RecordInvalid:
                    continue
                found[self.dump.keys.reality_parts(key)] = (entry, reality)
        return found

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {
            self.dump.keys.last_part(key): node for key, (_, node) in self.dump.tree("nodes", Node).items()
        }

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """Manifests by their digest."""
        return self.dump.manifests

    def intent(self, place: Place) -> tuple[Entry, Intent] | None:
        return self.dump.intents.get(place)

    def well(self, node: str) -> bool:
        """Whether a node's agent has had no fault for so long that no farm takes the node for lost: one
        that was started again is present seconds later.
        """
        return self.well_for.get(node, 0.0) > PRESENT_SECONDS

    def drain(self, node: str) -> Drain | None:
        return self.nodes[node].drain if node in self.nodes else None

    def fits(self, node: str, selector: str) -> bool:
        """Whether people and the node's agent say the labels that a selector asks for."""
        said = self.nodes.get(node, Node()).labels
        return parse(selector).matches({"zone": self.zones.get(node, ""), **said})

    def serves(self, place: Place, manifest: str) -> bool:
        """Whether a pod runs a manifest and is healthy."""
        found = self.realities.get(place)
        if found is None or found[1].manifest != manifest:
            return False
        return (found[1].phase, found[1].health.state) == ("running", "passing")

    def lasts(self, manifest: str) -> bool:
        """Whether the pods of a manifest run until somebody ends them."""
        return manifest in self.manifests and float(self.manifests[manifest].command[1]) > 3600
