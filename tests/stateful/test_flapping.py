"""Health that comes and goes: W17 on virtual time."""

from __future__ import annotations

import pytest

from store.status import Status
from tests.stateful.scene import Scene


def flap(scene: Scene, node: str, *, sick: float, well: float, times: int) -> None:
    """One pod's check fails and passes in turn, until it is moved or time is over."""
    agent = scene.agents[node]
    for _ in range(times):
        agent.ail("hello", sick=True)
        scene.advance(sick)
        agent.ail("hello", sick=False)
        scene.advance(well)


@pytest.mark.parametrize(("well", "moved"), [(3.0, True), (70.0, False)])
def test_w17_a_pod_that_passes_only_for_moments_is_replaced(scene: Scene, well: float, moved: bool) -> None:
    """``unhealthy_after`` is 6 s here: none of its failures lasts that long by itself."""
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1)
    scene.farm()
    scene.advance(10.0)
    ((node, _),) = scene.places(rc)
    flap(scene, node, sick=3.0, well=well, times=5)
    scene.advance(20.0)
    ((now, _),) = scene.places(rc)
    assert (now != node) is moved
    assert scene.audits("transfer.cancel") == 0
    status: Status = scene.status(rc)
    assert (status.state, status.healthy) == ("converged", 1)
