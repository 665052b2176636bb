"""What a replication controller's decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scheduler.model import Assignment
from store.entry import Stored
from store.intent import Intent
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Glance, Reality, healthy

Place = tuple[str, str]
"""(node, instance)."""


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of the RC with what its node must run and does run.

    ``retained``: its node may keep it. ``unreadable``: there is an intent that does not decode.
    """

    pod: Stored[Pod]
    intent: Stored[Intent] | None
    reality: Reality | Glance | None
    retained: bool = True
    unreadable: bool = False

    @property
    def healthy(self) -> bool:
        """Whether it runs its own manifest and passes its check."""
        return healthy(self.reality, self.pod.record.manifest)


@dataclass(frozen=True, slots=True)
class Offer:
    """Places that the scheduler offers for missing pods; ``why`` says why there are not enough."""

    assignments: tuple[Assignment, ...] = ()
    missing: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One RC and its world at one moment.

    ``frozen`` says why removals stand still; ``commanded`` that the record was changed after that, so
    that its count is a person's explicit word (R18).
    """

    rc: ReplicationController
    pods: Mapping[Place, PodState]
    offer: Offer = Offer()
    frozen: str | None = None
    commanded: bool = False

    @property
    def outdated(self) -> list[Place]:
        """Pods that should run another manifest than the RC's."""
        return [place for place, state in self.pods.items() if state.pod.record.manifest != self.rc.manifest]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change now.

    ``repairs`` are pods whose intent was lost or altered, ``replacements`` outdated pods that take the
    RC's manifest in place. ``blocked`` says what stands in the way of the rest.
    """

    additions: tuple[Assignment, ...] = ()
    removals: tuple[Place, ...] = ()
    repairs: tuple[Place, ...] = ()
    replacements: tuple[Place, ...] = ()
    blocked: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to change."""
        return not (self.additions or self.removals or self.repairs or self.replacements)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one cycle ended, and when to look again if nothing happens before (seconds; None: never)."""

    result: Literal["done", "after", "backoff", "blocked", "rejected", "frozen"]
    after: float | None = None
    reason: str = ""
