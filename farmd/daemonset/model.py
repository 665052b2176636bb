"""What a daemon set's decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farmd.pods.state import Place, PodState
from farmd.work.model import Blocked
from scheduler.model import Assignment
from store.daemonsets import DaemonSet

Fact = Literal["room", "places"]


@dataclass(frozen=True, slots=True)
class Need:
    """What the scheduler must say before the plan can be made; ``count``: so many places."""

    fact: Fact
    count: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One daemon set and its world at one moment.

    ``vacant`` are eligible nodes that have no pod of it yet, ``offer`` the places there that the scheduler
    gives (as many as may be taken now). ``refused`` counts, by reason code, the nodes that may not have
    one; ``nodes`` is how many there are in all. ``contention`` says with which older daemon set it
    contends. ``cramped`` are outdated pods whose nodes have no room for what the manifest asks for by now.
    ``running`` says which processes nodes still run of one that is being deleted and has no pods left.
    ``unread`` are the facts that were not asked for yet: whether outdated pods have room (``room``), places
    for new ones (``places``). ``frozen`` says why removals stand still; ``commanded`` that the record was
    changed after that (R18). ``now``: seconds since the epoch.
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
    unread: frozenset[Fact] = frozenset()

    @property
    def held_back(self) -> bool:
        """Whether nothing may be removed or replaced now."""
        return self.frozen is not None and not self.commanded

    @property
    def kept(self) -> dict[Place, PodState]:
        """Pods that belong where they stand, on nodes that are not given up."""
        return {place: state for place, state in self.pods.items() if state.retained and state.lost is None}

    @property
    def outdated(self) -> list[Place]:
        """Pods that should run another manifest than they do."""
        return [place for place, state in self.pods.items() if state.outdated(self.daemonset.manifest)]

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
    of one that is being deleted, and its record goes. ``contended``: why to plan again in a moment.
    """

    additions: tuple[Assignment, ...] = ()
    removals: tuple[Place, ...] = ()
    repairs: tuple[Place, ...] = ()
    replacements: tuple[Place, ...] = ()
    blocked: Blocked | None = None
    waiting: str = ""
    after: float | None = None
    ends: bool = False
    contended: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but a status."""
        changes = self.additions or self.removals or self.repairs or self.replacements
        return not (changes or self.ends or self.contended)

    @property
    def arriving(self) -> tuple[Place, ...]:
        """Where a pod comes that is not there yet."""
        return tuple((goal.node, goal.instance) for goal in self.additions)

    def counts(self) -> dict[str, int | str]:
        """What changes, for the log."""
        return {
            "placed": len(self.additions),
            "removed": len(self.removals),
            "repaired": len(self.repairs),
            "replaced": len(self.replacements),
        }
