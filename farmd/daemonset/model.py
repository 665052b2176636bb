"""What a daemon set's decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farmd.pods.state import PodState
from farmd.work.owned import OwnerPlan, OwnerSnapshot
from scheduler.model import Assignment
from store.daemonsets import DaemonSet
from store.pods import Place

Fact = Literal["room", "places"]


@dataclass(frozen=True, slots=True)
class Need:
    """What the scheduler must say before the plan can be made; ``count``: so many places."""

    fact: Fact
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(OwnerSnapshot):
    """One daemon set and its fleet at one moment.

    ``vacant`` are eligible nodes that have no pod of it yet, ``offer`` the places there that the scheduler
    gives (as many as may be taken now). ``refused`` counts, by reason code, the nodes that may not have
    one; ``nodes`` is how many there are in all. ``contention`` says with which older daemon set it
    contends. ``edited``: the record changed since a plan last took in all that it says.
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
        """Pods that belong where they stand, on nodes that are not given up."""
        return {place: state for place, state in self.pods.items() if state.retained and state.lost is None}

    @property
    def outdated(self) -> list[Place]:
        """Pods that should run another manifest than they do, or be restarted."""
        wanted = self.daemonset.manifest, self.daemonset.restart
        return [place for place, state in self.pods.items() if state.outdated(*wanted)]

    @property
    def desired(self) -> int:
        """On how many nodes there should be a pod: on eligible ones, and those that may keep theirs."""
        if self.daemonset.deleting:
            return 0
        return len(self.vacant) + len(self.kept)


Plan = OwnerPlan
