"""What a daemon set's decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scheduler.model import Assignment
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.intent import Intent
from store.pods import Pod
from store.reality import Glance, Reality, healthy

Place = tuple[str, str]
"""(node, instance)."""

Leaving = Literal["", "ineligible", "draining"]
Contact = Literal["present", "absent", "lost"]


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of the daemon set with what its node must run and does run.

    ``leaving``: why its node may not keep it; ``contact``: whether its node's agent is heard of (R21).
    ``unreadable``: there is an intent that does not decode, so nobody can tell whose it is.
    """

    pod: Stored[Pod]
    intent: Stored[Intent] | None
    reality: Reality | Glance | None
    leaving: Leaving = ""
    contact: Contact = "present"
    unreadable: bool = False

    @property
    def serves(self) -> bool:
        """Whether it passes its check in the very start that its intent asked for (R22).

        Of an absent agent's pod nobody knows: it is not counted on.
        """
        if self.contact != "present" or self.intent is None or self.reality is None:
            return False
        return healthy(self.reality, self.pod.record.manifest) and self.reality.intent >= self.intent.index


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One daemon set and its world at one moment.

    ``vacant`` are eligible nodes that have no pod of it yet, ``offer`` the places there that the scheduler
    gives (as many as may be taken now). ``refused`` counts, by reason code, the nodes that may not have
    one; ``nodes`` is how many there are in all. ``contention`` says with which older daemon set it
    contends. ``cramped`` are outdated pods whose nodes have no room for what the manifest asks for by now.
    ``running`` says which processes nodes still run of one that is being deleted and has no pods left.
    ``frozen`` says why removals stand still; ``commanded`` that the record was changed after
    that (R18). ``now``: seconds since the epoch.
    """

    daemonset: DaemonSet
    pods: Mapping[Place, PodState]
    vacant: tuple[str, ...] = ()
    offer: tuple[Assignment, ...] = ()
    nodes: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    contention: str = ""
    frozen: str | None = None
    commanded: bool = False
    now: float = 0.0
    cramped: frozenset[Place] = frozenset()
    running: str = ""

    @property
    def held_back(self) -> bool:
        """Whether nothing may be removed or replaced now."""
        return self.frozen is not None and not self.commanded

    @property
    def kept(self) -> dict[Place, PodState]:
        """Pods that belong where they stand, on nodes that are not given up."""
        return {
            place: state
            for place, state in self.pods.items()
            if not state.leaving and state.contact != "lost"
        }

    @property
    def desired(self) -> int:
        """On how many nodes there should be a pod: on eligible ones, and those that may keep theirs."""
        if self.daemonset.deleting:
            return 0
        return len(self.vacant) + len(self.kept)

    def outdated(self, state: PodState) -> bool:
        """Whether a pod should run another manifest than it does."""
        return state.pod.record.manifest != self.daemonset.manifest


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change now.

    ``repairs`` are pods whose intent was lost or altered, ``replacements`` outdated pods that take the
    daemon set's manifest in place. ``blocked`` says what stands in the way of the rest, ``waiting`` what
    is merely not over yet; ``after`` (seconds) when time alone changes something. ``ends``: nothing is left
    of one that is being deleted, and its record goes.
    """

    additions: tuple[Assignment, ...] = ()
    removals: tuple[Place, ...] = ()
    repairs: tuple[Place, ...] = ()
    replacements: tuple[Place, ...] = ()
    blocked: str = ""
    waiting: str = ""
    after: float | None = None
    ends: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to change."""
        return not (self.additions or self.removals or self.repairs or self.replacements)
