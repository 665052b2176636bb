"""A farm killed or stopped at the k-th transaction of an app, on a real Consul; another one ends it.

``tests/unit/apps`` tries every k in virtual time; here processes and packets are real. The app makes a
node's label and two controllers in two waves, and collects a third one.
"""

from __future__ import annotations

import pytest

from farmd.apps.scene import state_of
from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from store.apps import KIND
from tests.app_fleet import MARK, apply, document, rc, records
from tests.fault.falling import FATES, Fate, world_on
from tests.fault.farm_process import Nursery
from tests.fault.invariants import violations
from tests.fleet import CLOCK, eventually

KINDS = (KIND, "rcs", "rollouts")
STEPS = 6
"""Beginning with the first step's changes, gate, second step, gate, sweep, end."""


@pytest.mark.slow
@pytest.mark.parametrize(("k", "fate"), [(k, FATES[k % len(FATES)]) for k in range(1, STEPS + 1)])
async def test_r12_a_farm_that_falls_away_in_the_middle_of_an_app_changes_nothing_about_its_end(
    consul_dev: str, nursery: Nursery, k: int, fate: Fate
) -> None:
    async with world_on(consul_dev, nursery, KINDS) as world:
        cluster = world.cluster
        await cluster.add_nodes({"n1": {}, "n2": {}})
        call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@test")

        async def reached(number: int) -> None:
            async def so() -> bool:
                found = await state_of(call, "shop")
                return found.reached == found.effective == number

            await eventually(so, what=f"revision {number}")

        await apply(call, "shop", rc("a"), rc("old"), rc("c"))
        await reached(1)
        hold = world.hold(KIND, k, answer="answered" in fate)
        node = document("node", "n1", labels={"rack": "r1"})
        await apply(call, "shop", rc("a", labels={"n": "2"}), rc("c"), rc("new", wave=1), node, prune=True)

        async def ended() -> None:
            await reached(2)
            found = await records(call, "rcs")
            assert {name: each.part_of for name, each in found.items()} == dict.fromkeys("ac", MARK) | {
                "new": MARK
            }
            assert found["a"].labels == {"n": "2"}
            assert (await records(call, "nodes"))["n1"].parts == {"labels.rack": MARK}
            assert len(await cluster.pods(found["new"].id)) == 1

        await world.falls(fate, hold, ended)
        assert violations(await cluster.dump()) == []
