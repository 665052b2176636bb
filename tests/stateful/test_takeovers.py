"""R31: an object that another app's wanted revision takes over is handed to it, and never removed first.

The other app's worker tells what it waits for only once it has looked at the object's step.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from farmd.apps import commands
from farmd.commands.mutation import commit
from tests.app_fleet import rc
from tests.stateful.applying import Applying
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

WANTED: dict[str, Any] = {"prune": True, "mass": True}


def begun(scene: Scene) -> Applying:
    """``shop`` has controllers ``a`` and ``shared``, which run, and no farm is alive."""
    scene.nodes(2)
    apps = Applying(scene, random.Random(1))
    scene.farm()
    apps.apply("shop", rc("a"), rc("shared"), **WANTED)
    scene.advance(30.0)
    apps.branded()
    scene.run(scene.farms["ash"].stop())
    return apps


def shared(scene: Scene) -> str:
    """The id of the controller ``shared``, whichever that is now."""
    (found,) = (each.id for each in scene.sight.rcs.values() if each.name == "shared")
    return found


@pytest.mark.parametrize("late", ["no farm has looked", "a step before is not ready", "paused"])
def test_an_object_goes_to_the_app_whose_revision_takes_it_though_its_worker_does_not_wait_yet(
    scene: Scene, late: str
) -> None:
    apps = begun(scene)
    before, places = shared(scene), scene.places(shared(scene))
    first = [rc("b", wave=0)] if late == "a step before is not ready" else []
    for agent in scene.agents.values():
        agent.delay = 1000.0 if first else agent.delay
    apps.apply("till", *first, rc("shared", wave=1), adopt=["rc/shared"], paused=late == "paused", **WANTED)
    if late != "no farm has looked":
        scene.farm()
        scene.advance(20.0)
        apps.branded()
        scene.run(scene.farms["ash"].stop())
    apps.apply("shop", rc("a"), **WANTED)
    scene.farm()
    scene.advance(40.0)
    assert shared(scene) == before
    assert scene.places(before) == places
    assert apps.marks()["shared"] == "apps/till"
    assert scene.read(KEYS.record("rcs", before)) is not None


def test_an_object_goes_with_its_app_where_the_other_app_may_not_take_it(scene: Scene) -> None:
    apps = begun(scene)
    before = shared(scene)
    apps.apply("till", rc("shared"), **WANTED)
    apps.apply("shop", rc("a"), **WANTED)
    scene.farm()
    scene.advance(60.0)
    assert scene.read(KEYS.record("rcs", before)) is None


def test_what_an_earlier_app_of_the_same_name_wanted_is_not_handed_to_the_present_one(scene: Scene) -> None:
    scene.nodes(2)
    apps = Applying(scene, random.Random(1))
    scene.farm()
    apps.apply("shop", rc("a"), rc("shared"), rc("other"), **WANTED)
    scene.advance(30.0)
    apps.apply("till", rc("shared"), adopt=["rc/shared", "rc/other"], paused=True, **WANTED)
    apps.apply("shop", rc("a"), rc("shared"), **WANTED)
    scene.advance(30.0)  # the farm looked whether till, in its revision 1, takes rc/other
    deletion, _ = scene.run(commands.delete(scene.call, "till", keep=False))
    scene.run(commit(scene.call, deletion))
    scene.advance(30.0)
    apps.apply("till", rc("b"), adopt=["rc/shared"], paused=True, **WANTED)
    apps.apply("shop", rc("a"), **WANTED)
    scene.advance(60.0)
    assert apps.marks() == {"a": "apps/shop"}
    assert {each.name for each in scene.sight.rcs.values()} == {"a"}
