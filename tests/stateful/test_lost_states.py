"""Records of how far an item is that are emptied or deleted by hand: nothing that began begins again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from farmd.commands.mutation import commit
from farmd.deploy.manifest import compiled
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.rollout import commands as rollouts
from store import codec
from store.families import FAMILIES
from store.status import ItemStatus
from tests.app_fleet import rc
from tests.stateful.applying import Applying
from tests.stateful.deploying import SECOND, Deploying, spec
from tests.stateful.fleet import KEYS
from tests.stateful.rolling import Rolling
from tests.stateful.scene import Scene

LOST = pytest.mark.parametrize("value", [b"{}", None], ids=["emptied", "deleted"])
FARMS = ("ash", "birch")


def lose(scene: Scene, kind: str, item: str, value: bytes | None) -> str:
    """Damage the state of an item, and let another farm take the item over once it is blocked."""
    key = KEYS.work(kind, item)
    scene.run(scene.hand.delete(key) if value is None else scene.hand.put(key, value))
    blocked(scene, kind, item)
    scene.run(scene.hand.delete(KEYS.lock(kind, item)))
    scene.advance(30.0)
    blocked(scene, kind, item)
    return key


def status(scene: Scene, kind: str, item: str) -> ItemStatus:
    entry = scene.read(KEYS.status(kind, item))
    assert entry is not None
    return codec.decode(FAMILIES[kind].status, entry.value, entry.key)


def blocked(scene: Scene, kind: str, item: str) -> None:
    for _ in range(60):
        told = status(scene, kind, item)
        if told.state == "blocked" and KEYS.work(kind, item) in told.reason:
            return
        scene.advance(1.0)
    raise AssertionError(told)


def mend(scene: Scene, key: str) -> None:
    """``doctor --fix``."""
    report = scene.run(examine(scene.client, KEYS, scene.clock))
    lost = [each for each in report.findings if each.code == "state-lost"]
    assert [KEYS.prefix + each.object for each in lost] == [key]
    for mutation in scene.run(fixes.mutations(scene.call, lost)):
        scene.run(commit(scene.call, mutation))


def until(scene: Scene, so: Callable[[], Any]) -> None:
    for _ in range(200):
        if so():
            return
        scene.advance(1.0)
    raise AssertionError("it never came true")


@LOST
def test_a_rollout_whose_state_was_lost_halts_for_a_person(scene: Scene, value: bytes | None) -> None:
    rolling = Rolling(scene, replicas=4)
    made = rolling.begin(stages=[{"to": 1, "bake": 300}, "100%"])
    rolling.until(lambda: (state := rolling.state) is not None and state.phase == "baking")
    scene.advance(5.0)
    before = scene.audits("rollout.take")
    key = lose(scene, "rollouts", made.id, value)
    assert scene.audits("rollout.take") == before
    mend(scene, key)
    scene.advance(10.0)
    assert rolling.state is not None
    assert (rolling.state.phase, rolling.state.stage) == ("halted", 0)
    rolling.ask(lambda: rollouts.revert(scene.call, "web"))
    rolling.whole("reverted")


@LOST
def test_a_deployment_whose_state_was_lost_does_not_begin_again(scene: Scene, value: bytes | None) -> None:
    deploying = Deploying(scene)
    deploying.deploy(spec())
    until(scene, lambda: not scene.sight.under("deployments"))
    wanted = spec(image=SECOND, update={"monitor": 300.0})
    ident = deploying.deploy(wanted)
    until(scene, lambda: deploying.runs(compiled(wanted)[1].manifest))
    scene.advance(5.0)
    before = scene.audits("deployment.begin")
    key = lose(scene, "deployments", ident, value)
    assert scene.audits("deployment.begin") == before
    mend(scene, key)
    until(scene, lambda: scene.audits("deployment.begin") > before)


@LOST
def test_an_app_whose_state_was_lost_applies_nothing_again(scene: Scene, value: bytes | None) -> None:
    scene.nodes(2)
    for farm in FARMS:
        scene.farm(farm)
    Applying(scene, random.Random(1)).apply("shop", rc("web"))
    until(scene, lambda: scene.read(KEYS.status("apps", "shop")))
    until(scene, lambda: getattr(status(scene, "apps", "shop"), "phase", "") == "reached")
    before = scene.audits("app.begin")
    key = lose(scene, "apps", "shop", value)
    assert scene.audits("app.begin") == before
    mend(scene, key)
    until(scene, lambda: scene.audits("app.begin") > before)
