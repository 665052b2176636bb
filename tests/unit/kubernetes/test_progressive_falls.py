"""A farm falls at each write of a whole rollout of two stages, in a pure model; another one finishes it.

The write is never sent, or carried out without an answer, or it arrives at any moment after others went on:
then the API server refuses it unless its object is still the version that the plan was made from (R16).
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

import pytest

from farmd.kubernetes.knative import scales
from farmd.kubernetes.knative.facts import Bounds, Drop, Plan, Reap, StageBounds, Traffic, Turn, Write
from farmd.kubernetes.knative.objects import REVERT
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from tests.effort import first
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked

Fate = Literal["never sent", "never answered", "sent late"]
NEVER = 1_000_000
PODS = 2


class Mortal(Checked):
    """Its farm falls at the k-th write from ``begin`` on."""

    def __init__(self, seed: int, pace: Settings, k: int, fate: Fate) -> None:
        self.k, self.fate, self.begun, self.sent, self.refused = k, fate, False, 0, 0
        self.versions: Counter[str] = Counter()
        self.late: tuple[Turn | Write, int] | None = None
        super().__init__(seed, pace, Bounds(PODS, PODS))

    def cycle(self) -> Plan:
        plan = decide(self.snapshot())
        for each in filter(None, (plan.turn, *plan.writes)):
            self.sent += self.begun
            if self.begun and self.sent == self.k:
                self._fall(each)
                break
            self.carry_out(each)
        return plan

    def _fall(self, change: Turn | Write) -> None:
        """Another farm claims the record, and the service while a rollout is under way."""
        if self.fate == "never answered":
            self.carry_out(change)
        if self.fate == "sent late":
            self.late = change, self.versions[_of(change)]
        self.risen = self.now
        self.versions["record"] += 1
        if self.record is not None and scales.rollout(self.snapshot()).ready is not True:
            self.versions["service"] += 1

    def carry_out(self, change: Turn | Write) -> None:
        super().carry_out(change)
        self.versions[_of(change)] += 1

    def arrive(self) -> None:
        """What was sent late is there now."""
        if self.late is not None:
            change, version = self.late
            self.late = None
            gone = (
                isinstance(change, Reap) and not self.revisions[change.pod.metadata.labels["revision"]].ending
            )
            if gone or self.versions[_of(change)] != version:
                self.refused += 1
            else:
                self.carry_out(change)

    def check(self) -> None:
        if self.rng.random() < 0.02:
            self.arrive()

    def end(self, name: str) -> None:
        """The rollout is over, also once everything has arrived."""
        self.settle()
        self.arrive()
        self.settle()
        self.rests(name)


def _of(change: Turn | Write) -> str:
    """The object that a change names."""
    if isinstance(change, Turn):
        return "record"
    if isinstance(change, Traffic):
        return "service"
    if isinstance(change, Reap):
        return f"pod/{change.pod.metadata.name}"
    return f"{'stage' if isinstance(change, StageBounds | Drop) else 'bounds'}/{change.revision}"


def rolled(seed: int, strategy: str, k: int, fate: Fate, *, back: bool) -> Mortal:
    """A whole rollout, forward or back again."""
    world = Mortal(seed, Settings(ratio=50, strategy=strategy), k, fate)
    world.begun = True
    world.settle()
    world.push(Bounds(PODS, PODS))
    if back:
        while world.shares != {OLD: 50, NEW: 50}:
            world.step()
            world.cycle()
            world.check()
        world.say(REVERT, "1")
    world.end(OLD if back else NEW)
    return world


@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
@pytest.mark.parametrize("fate", first(1, get_args(Fate)))
def test_a_rollout_ends_alike_at_whichever_write_its_farm_falls(
    fate: Fate, strategy: str, *, back: bool
) -> None:
    refused = 0
    calm = rolled(1, strategy, NEVER, fate, back=back)
    assert calm.sent >= 20
    for k in range(1, calm.sent + 1):
        refused += rolled(k, strategy, k, fate, back=back).refused
    assert bool(refused) == (fate == "sent late")
