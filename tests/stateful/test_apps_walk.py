"""Two apps among many troubles at once, others for each seed: on a whole fleet in virtual time.

Every commit of theirs is judged (``app_rules.py``), and at each moment whatever bears a mark is named by a
revision that its app may have to collect (``tests/fault/app_invariants.py``).
"""

from __future__ import annotations

import random

import pytest

from farmd.nodes import commands as nodes
from tests.stateful.applying import APPS, NAMES, Applying
from tests.stateful.lines import FAULTS
from tests.stateful.scene import Scene

FARMS = ("ash", "birch")


class Walk(Applying):
    """One fleet with two farms, and whoever disturbs it."""

    def __init__(self, scene: Scene, seed: int) -> None:
        super().__init__(scene, random.Random(seed))
        scene.nodes(3)
        for name in FARMS:
            scene.farm(name)

    def step(self) -> None:
        """One of the things that happen."""
        people = [
            self.applied,
            self.applied,
            self.applied,
            self.said,
            self.rolled_back,
            self.edited,
            self.edited,
        ]
        self.rng.choice([*people, self.trouble, self.trouble])()

    def trouble(self) -> None:
        """A farm falls away, stops, is cut off or not answered; a machine ends; a node is drained."""
        scene, rng = self.scene, self.rng
        farm, agent = scene.farms[rng.choice(FARMS)], rng.choice(list(scene.agents.values()))
        kind = rng.choice(["kill", "freeze", "thaw", "spoil", "spoil", "cut", "machine", "drain"])
        if kind == "kill":
            scene.run(farm.kill())
            scene.farm(farm.name)
        elif kind == "machine":
            scene.run(agent.die(at_once=rng.random() < 0.5) if agent.alive else agent.start())
        elif kind == "drain":
            scene.ask(lambda: nodes.drain(scene.call, agent.node, 3600.0))
        elif farm.alive:
            words = {"freeze": farm.freeze, "thaw": farm.thaw, "cut": lambda: farm.line.cut(True)}
            words.get(kind, lambda: farm.line.spoil(rng.randint(0, 5), rng.choice(FAULTS)))()


@pytest.mark.parametrize("seed", [0, 3, 7, 9])
def test_marks_are_what_apps_want_in_the_end_whatever_happens_meanwhile(scene: Scene, seed: int) -> None:
    walk = Walk(scene, seed)
    for _ in range(20):
        walk.step()
        scene.advance(walk.rng.choice([0.02, 0.3, 3.0, 15.0]))
        walk.branded()
        scene.check()
    scene.well(*FARMS)
    walk.calm()
    scene.converge()
    own = {f"{app}-{wave}": f"apps/{app}" for app in APPS for wave in range(2)}
    assert walk.marks() == own | {NAMES[number]: f"apps/{app}" for number, app in enumerate(APPS)} | {
        name: "" for name, owner in walk.marks().items() if not owner
    }
    assert not scene.sight.nodes["n0"].parts
