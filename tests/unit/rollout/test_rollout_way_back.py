"""R14: the way back ends, also where the old controller's pods are of a manifest before its own."""

from __future__ import annotations

import pytest

from store.rollouts import RolloutState
from tests.rollout_worlds import NOW, OLD, World, pod, rollout

BEFORE = "0" * 64


@pytest.mark.parametrize("strategy", ["rolling", "availability", "resourceutil"])
@pytest.mark.parametrize("minimum", [4, 5])
def test_a_way_back_ends_where_the_old_controllers_pods_are_of_a_version_before(
    strategy: str, minimum: int
) -> None:
    world = World(
        rollout(5, minimum, policy={"strategy": strategy}),
        old={(f"n{number}", "web"): pod(manifest=BEFORE) for number in range(1, 5)},
        new={("n5", "web"): pod("00bb", healthy=False)},
        counts={OLD: 4},
        state=RolloutState(phase="moving", back=True, since=NOW, cause="it fails"),
        free=["n6"],
    )
    for _ in range(40):
        world.step()
        if world.outcome:
            break
        world.settle()
        world.now += 1.0
    assert world.outcome == "reverted"
