"""A manager of owners of pods hears of them as long as it works, whoever else stops to work on them (R14)."""

from __future__ import annotations

import pytest

from farmd.cache.fleet import FleetIndex
from farmd.rollout.kind import Rollouts
from farmd.runtime.wake import Wake
from store.families import RCS
from store.keys import Keys
from store.reality import Health, Reality
from tests.node_farms import fleet_of
from tests.toys import Farms

RC, KEYS = "00aa", Keys()
PROCESS = KEYS.reality("n1", "web")


class World:
    """A controller whose removed pod runs still; its own worker and a manager's wait for its end."""

    def __init__(self, farms: Farms) -> None:
        self.farms = farms
        self.worker, self.manager = Wake(), Wake()

    async def begin(self) -> FleetIndex:
        farm = await self.farms.start("a")
        await self.farms.clock.advance(1.0)
        self.caches = farm.caches
        self.fleet = FleetIndex(farm.caches, KEYS)
        self.caches.reality.wrote(PROCESS, Reality(manifest="m", owner=RC, health=Health("passing")), 1000)
        self.caches.reality.notify({PROCESS})
        self.fleet.attach("rcs", RC, self.worker)
        self.fleet.follow(RC, "rollout", self.manager)
        assert self.fleet.processes.of(RC) == [("n1", "web")]
        return self.fleet

    def process_ends(self) -> None:
        self.worker.clear()
        self.manager.clear()
        self.caches.reality.removed(PROCESS, 1001)
        self.caches.reality.notify({PROCESS})


@pytest.fixture
async def world(farms: Farms) -> World:
    return World(farms)


async def test_a_manager_hears_of_the_end_of_a_process_after_the_owners_worker_went(world: World) -> None:
    (await world.begin()).detach(RC)
    world.process_ends()
    assert (world.worker.is_set(), world.manager.is_set()) == (False, True)


async def test_an_owners_worker_hears_of_the_end_of_a_process_after_its_manager_went(world: World) -> None:
    (await world.begin()).unfollow(RC, "rollout")
    world.process_ends()
    assert (world.worker.is_set(), world.manager.is_set()) == (True, False)


async def test_processes_of_an_owner_on_which_nobody_works_are_not_followed(world: World) -> None:
    fleet = await world.begin()
    fleet.detach(RC)
    fleet.unfollow(RC, "rollout")
    world.process_ends()
    assert not fleet.processes._followed


async def test_a_manager_hears_of_its_owners_record_after_another_manager_of_it_went() -> None:
    async with fleet_of("n1") as world:
        (kind,) = (await world.start("a", kinds=("rollouts",))).farm.kinds
        assert isinstance(kind, Rollouts)
        caches, fleet, before, now = kind.context.caches, kind.context.fleet, Wake(), Wake()
        fleet.follow(RC, "the one before", before)
        fleet.follow(RC, "the one of now", now)
        fleet.unfollow(RC, "the one before")
        caches.tree(RCS).notify({KEYS.record("rcs", RC)})
        assert (before.is_set(), now.is_set()) == (False, True)
