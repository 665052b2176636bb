"""The snapshot and the plan of a daemon set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farmd.pods.state import PodState
from farmd.work.owned import ReplicaPlan, ReplicaSnapshot
from scheduler.model import Assignment
from store.daemonsets import DaemonSet
from store.pods import Place

Fact = Literal["room", "places"]


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that the scheduler must supply before the plan; ``count``: the number of places."""

    fact: Fact
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ReplicaSnapshot):
    """One daemon set and its fleet at one moment.

    ``vacant`` are eligible nodes without a pod of it, ``offer`` the places there from the scheduler (as many
    as may be taken now). ``refused`` counts the ineligible nodes by reason code; ``nodes`` is the number of
    all nodes. ``contention`` names the older daemon set that it contends with. ``edited``: the record changed
    since a plan last took in all that it says.
    """

    daemonset: DaemonSet
    vacant: tuple[str, ...] = ()
    offer: tuple[Assignment, ...] = ()
    nodes: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    contention: str = ""
    edited: bool = False

    @property
    def waits_for_room(self) -> bool:
        """Whether other changes of reservations are in flight, or outdated pods have no room."""
        return bool(self.refused.get("contended") or self.cramped)

    @property
    def kept(self) -> dict[Place, PodState]:
        """Pods that may stay, on nodes that are not given up."""
        return {place: state for place, state in self.pods.items() if state.retained and state.lost is None}

    @property
    def outdated(self) -> list[Place]:
        """Pods that run another manifest than they should, or must be restarted."""
        wanted = self.daemonset.manifest, self.daemonset.restart
        return [place for place, state in self.pods.items() if state.outdated(*wanted)]

    @property
    def desired(self) -> int:
        """How many nodes should have a pod: eligible ones, and those that may keep theirs."""
        if self.daemonset.deleting:
            return 0
        return len(self.vacant) + len(self.kept)


Plan = ReplicaPlan
