"""What a daemon set's decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farmd.pods.state import Place, PodState
from scheduler.model import Assignment
from store.daemonsets import DaemonSet


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
        return {place: state for place, state in self.pods.items() if state.retained and state.lost is None}

    @property
    def desired(self) -> int:
        """On how many nodes there should be a pod: on eligible ones, and those that may keep theirs."""
        if self.daemonset.deleting:
            return 0
        return len(self.vacant) + len(self.kept)


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
