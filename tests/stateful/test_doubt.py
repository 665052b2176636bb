"""R18, R19: what one farm remembers or misses holds up that farm alone."""

from __future__ import annotations

from tests.stateful.fleet import FARMS, KEYS
from tests.stateful.scene import Scene


def test_r19_a_farm_that_loses_the_leader_again_and_again_freezes_nobody_else(scene: Scene) -> None:
    """A lost node's pods are replaced meanwhile, by whichever farm has them."""
    scene.nodes(6)
    owners = [scene.rc(name=f"web{number}", replicas=2, pod_id=f"web{number}") for number in range(6)]
    for name in FARMS:
        scene.farm(name)
    scene.advance(20.0)
    frozen = set[str]()
    gone = scene.places(owners[0])[0][0]
    for turn in range(8):
        scene.farms["ash"].line.leaderless(True)
        if turn == 2:
            scene.run(scene.agents[gone].die(at_once=False))
        for _ in range(15):
            scene.advance(1.0)
            frozen |= scene.under(KEYS.failsafe("")).keys()
        scene.farms["ash"].line.leaderless(False)
        for _ in range(20):
            scene.advance(1.0)
            frozen |= scene.under(KEYS.failsafe("")).keys()
        if turn == 4:
            assert all(len(scene.places(owner)) == 2 for owner in owners)
            assert not any(node == gone for owner in owners for node, _ in scene.places(owner))
    assert frozen - {KEYS.sentinel(KEYS.tree("failsafe"))} == set()
    scene.check()
