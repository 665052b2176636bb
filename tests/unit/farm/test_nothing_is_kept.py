"""Nothing is kept of nodes, pods, manifests and items that are gone: a farm runs for years."""

from __future__ import annotations

from collections.abc import Sized

from farmd.farm.kind import RecordItems
from farmd.nodes.facts import SystemPods
from farmd.work.status import Recollection
from scheduler.fleet import Fleet
from store import codec, manifests
from store.families import RCS
from store.keys import Keys
from store.manifests import Manifest
from store.nodes import Agent, Node
from store.pods import Pod, PodKey
from store.status import Status
from tests.people import KEYS, person
from tests.toys import Farms


def kept(thing: object) -> dict[str, int]:
    """The containers of an object that are not empty."""
    held = getattr(thing, "__dict__", {})
    return {name: len(value) for name, value in held.items() if isinstance(value, Sized) and value}


def test_a_fleet_forgets_nodes_and_pods_that_are_gone() -> None:
    fleet = Fleet()
    for number in range(50):
        name, key = f"n{number}", PodKey("rc", f"n{number}", "web")
        fleet.set_node(name, Node(labels={"a": "b"}))
        fleet.set_agent(name, Agent(node=name, version="1"))
        fleet.set_pod(key, Pod("sha"))
        fleet.set_lost(name, True)
        assert fleet.view()[name].pods
        fleet.set_pod(key, None)
        fleet.set_lost(name, False)
        fleet.set_agent(name, None)
        fleet.set_node(name, None)
        fleet.set_pod(PodKey("rc", f"unknown{number}", "web"), None)
    assert fleet.view() == {}
    assert kept(fleet) == {}


async def test_what_was_read_of_manifests_is_bounded() -> None:
    async with person() as call:
        system = SystemPods(call.client, KEYS)
        for number in range(1100):
            body = manifests.canonical(Manifest(id="web", command=["sleep", str(number)], system=True))
            await call.client.put(KEYS.manifest(manifests.digest(body)), body)
            assert await system(manifests.digest(body))
        assert max(size for part in (system, *vars(system).values()) for size in kept(part).values()) <= 1024


async def test_statuses_of_items_that_are_gone_are_not_recalled(farms: Farms) -> None:
    (item,) = await farms.add()
    farm, keys = await farms.start("a"), Keys()
    await farms.clock.advance(1.0)
    records = RecordItems(farm.caches.tree(RCS), keys)
    recollection = Recollection(farms.client, keys, "rcs", Status)
    records.subscribe_gone(recollection.forget)
    await farms.client.put(keys.status("rcs", item), codec.encode(Status(state="blocked")))
    await recollection.read([item])
    await farms.remove(item)
    await farms.clock.advance(1.0)
    assert recollection.take(item) is None
