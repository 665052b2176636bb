"""Whoever carries a plan out may die after any write: another one goes on from what is there.

A job of three members, of which one fails once. Whatever write was the last one, each attempt runs once, the
retry counts once, and the job ends once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from farmd.jobs.facts import Plan, ReplicaType, Slot, Traits
from tests.unit.jobs.worlds import CONSUL, KUBERNETES, World, spec, workers


class Died(Exception):
    """The farm is gone."""


class Mortal(World):
    """A world in which the farm dies at its k-th write: before it, or right after it."""

    def __init__(self, *args: Any, dies_at: int = 0, after: bool = False) -> None:
        super().__init__(*args)
        self.writes = 0
        self.ran: list[tuple[str, int]] = []
        self.verdicts: list[str] = []
        self.dies_at, self.after = dies_at, after

    def apply(self, plan: Plan) -> None:
        """One write after the other, in the order of the plan's fields."""
        for piece in pieces(plan):
            self.writes += 1
            if self.writes == self.dies_at and not self.after:
                raise Died
            if piece.run is not None and piece.run.outcome and not self.run.outcome:
                self.verdicts.append(piece.run.outcome)
            super().apply(piece)
            if self.writes == self.dies_at:
                raise Died

    def create(self, slot: Slot) -> Any:
        """A second member of one attempt never comes: its name is there already."""
        made = super().create(slot)
        assert (slot, made.attempt) not in self.created[:-1]
        assert not self.run.outcome
        return made

    def live(self) -> None:
        """The nodes do their part: members start, and end; the first attempt of worker 0 fails."""
        for each in list(self.members.values()):
            if each.leaving:
                del self.members[each.id]
            elif each.hold:
                self.change(each, phase="held")
            elif each.phase == "starting":
                self.ran.append((str(each.slot), each.attempt))
                self.change(each, phase="running")
            elif each.phase == "running" and (str(each.slot), each.attempt) == ("worker/0", 0):
                self.change(each, phase="failed", exit=137)
            elif each.phase == "running":
                self.change(each, phase="succeeded")


def pieces(plan: Plan) -> Iterator[Plan]:
    """A plan as one write each."""
    if plan.run is not None:
        yield Plan(run=plan.run)
    if plan.gang:
        yield Plan(gang=plan.gang)
    yield from (Plan(drop_services=(key,)) for key in plan.drop_services)
    yield from (Plan(create_services=(key,)) for key in plan.create_services)
    yield from (Plan(remove=(each,)) for each in plan.remove)
    yield from (Plan(create=(slot,)) for slot in plan.create)
    yield from (Plan(release=(each,)) for each in plan.release)
    if plan.delete_job:
        yield Plan(delete_job=True)


def lived(world: Mortal) -> Mortal:
    """The world at its end: the job is over, and its time to live, too."""
    for _ in range(200):
        try:
            world.step()
        except Died:
            continue  # another farm claims the job, and reads all anew
        if world.gone:
            return world
        world.live()
        world.now += 5
    raise AssertionError(f"the job came to no end: {world.run}")


JOBS = {
    "batch": spec(workers(3, restart="exit-code"), services="each", clean="all", ttl=10.0),
    "array": spec(workers(3, restart="on-failure", parallelism=1), ttl=10.0),
    "gang": spec(workers(3, restart="on-failure"), gang=True, ttl=10.0),
    "peers": spec(workers(3, restart="on-failure"), gang=True, peers=True, ttl=10.0),
    "types": spec(
        ReplicaType(name="ps"),
        workers(2, restart="on-failure"),
        services="shared",
        clean="running",
        ttl=10.0,
    ),
}


@pytest.mark.parametrize("traits", [CONSUL, KUBERNETES], ids=["consul", "kubernetes"])
@pytest.mark.parametrize("lingers", [False, True], ids=["at once", "with grace"])
@pytest.mark.parametrize("name", JOBS)
def test_a_farm_that_dies_at_any_write_changes_nothing_of_the_outcome(
    name: str, lingers: bool, traits: Traits
) -> None:
    def world(**fields: Any) -> Mortal:
        made = Mortal(replace(JOBS[name]), traits, **fields)
        made.lingers = lingers
        return made

    whole = lived(world())
    for k in range(1, whole.writes + 1):
        for after in (False, True):
            found = lived(world(dies_at=k, after=after))
            assert sorted(found.ran) == sorted(whole.ran), (k, after)
            assert found.run.restarts == whole.run.restarts == 1, (k, after)
            assert found.verdicts == ["succeeded"], (k, after)
    assert len(set(whole.ran)) == len(whole.ran)


def test_a_slot_that_is_done_does_not_run_again_where_somebody_deletes_its_member() -> None:
    world = World(spec(workers(2)), KUBERNETES)
    world.settle()
    first, second = world.members.values()
    world.change(first, phase="succeeded")
    del world.members[second.id]  # before anybody saw its end
    world.settle()
    world.members.clear()

    world.settle()

    assert [str(slot) for slot, _ in world.created] == ["worker/0", "worker/1", "worker/1", "worker/1"]
