"""R19: a kind's removal budget is a share of the pods that this farm owns of that kind."""

from __future__ import annotations

from farmd.cache.fleet import FEW_PODS, FleetIndex
from farmd.runtime.wake import Wake
from store.keys import Keys
from store.pods import Pod
from store.reality import Health, Reality
from tests.toys import Farms


async def test_r19_pods_of_other_kinds_and_of_other_farms_raise_no_budget(farms: Farms) -> None:
    farm, keys = await farms.start("a"), Keys()
    await farms.clock.advance(1.0)
    world = FleetIndex(farm.caches, keys)
    for owner in ("rc", "ds", "elsewhere"):
        places = [keys.pod(owner, f"n{n}", owner) for n in range({"rc": 2, "ds": 5}.get(owner, 9))]
        for index, key in enumerate(places, 1000):
            farm.caches.pods.wrote(key, Pod(manifest="m"), index)
        farm.caches.pods.notify(set(places))
    world.attach("rcs", "rc", Wake())
    world.attach("daemonsets", "ds", Wake())
    assert (world.pods_here("rcs"), world.pods_here("daemonsets")) == (2, 5)
    world.detach("ds")
    assert (world.pods_here("rcs"), world.pods_here("daemonsets")) == (2, 0)


async def test_the_pods_of_an_owner_are_the_same_by_place_however_many_there_are(farms: Farms) -> None:
    farm, keys = await farms.start("a"), Keys()
    await farms.clock.advance(1.0)
    world, tree, places = FleetIndex(farm.caches, keys), farm.caches.pods, set[tuple[str, str]]()
    nodes = [f"n{number}" for number in range(FEW_PODS + 3)]
    for index, node in enumerate((*nodes, nodes[0], *reversed(nodes)), 1000):
        place, key = (node, "web"), keys.pod("rc", node, "web")
        if place in places and index > 1000 + len(nodes):
            tree.removed(key, index)
            places.remove(place)
        else:
            tree.wrote(key, Pod(manifest=str(index)), index)
            places.add(place)
        tree.notify({key})
        found = world.pods("rc")
        assert found.keys() == places
        assert all(pod is tree.entries[keys.pod("rc", *place)] for place, pod in found.items())
    assert world.pods("rc") == {}


async def test_r29_a_pod_that_ended_for_good_is_no_evidence_of_ill_health(farms: Farms) -> None:
    farm, keys = await farms.start("a"), Keys()
    await farms.clock.advance(1.0)
    world, key = FleetIndex(farm.caches, keys), keys.reality("n1", "job")
    for index, (phase, failing) in enumerate((("failed", 1), ("done", 0)), 1000):
        said = Reality(manifest="m", owner="job", phase=phase, health=Health("critical"))  # type: ignore[arg-type]
        farm.caches.reality.wrote(key, said, index)
        farm.caches.reality.notify({key})
        assert world.failing() == (failing, 1)
