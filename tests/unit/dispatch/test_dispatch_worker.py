"""Apps of records in Consul, kept by real farms on virtual time."""

from __future__ import annotations

from tests.app_fleet import MARK, app_fleet, document, rc


async def test_a_bundle_of_two_waves_is_made_and_each_object_bears_its_mark() -> None:
    async with app_fleet("n1", "n2") as fleet:
        await fleet.apply(
            rc("web", wave=2, replicas=2), rc("db", wave=1), document("node", "n1", labels={"rack": "r1"})
        )
        await fleet.reached(1)
        found = await fleet.records()
        assert {name: each.part_of for name, each in found.items()} == {"web": MARK, "db": MARK}
        node = (await fleet.records("nodes"))["n1"]
        assert (node.labels["rack"], node.parts) == ("r1", {"labels.rack": MARK})
        told = await fleet.told("converged")
        assert (told.phase, told.objects, told.ready) == ("reached", 3, 3)
        assert found["db"].created < found["web"].created
