"""What the walk over whole fleets found where pods make room for others, each by its shortest way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farmd.housekeeping.model import DEFAULTS
from farmd.replication import commands
from store.nodes import Nomination
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


@pytest.fixture
def preempting() -> Iterator[Scene]:
    made = Scene(DEFAULTS, preemption=True)
    try:
        yield made
        made.check()
    finally:
        made.close()


def waiting(scene: Scene, node: str = "n0") -> dict[str, Nomination]:
    return scene.sight.reserved[node].nominations


def test_room_that_is_not_needed_any_more_is_given_up_after_a_freeze(preempting: Scene) -> None:
    scene = preempting
    scene.nodes(1, cpu=1.0)
    scene.farm()
    # One of two is missing, so the other one may not go.
    scene.rc(name="batch", replicas=2, pod_id="batch", pod_resources={"cpu": 1.0}, pod_priority=20)
    scene.advance(3.0)
    scene.rc(name="urgent", replicas=1, pod_id="urgent", pod_resources={"cpu": 1.0}, pod_priority=80)
    scene.advance(5.0)
    assert list(waiting(scene)) == ["urgent"]
    sentinel = KEYS.sentinel(KEYS.tree("reality"))
    value = scene.read(sentinel)
    assert value is not None
    scene.delete(sentinel)
    scene.advance(5.0)
    assert scene.ask(lambda: commands.set_replicas(scene.call, "urgent", 0)) is not None
    scene.advance(5.0)
    scene.put(sentinel, value.value)
    scene.advance(30.0)
    assert waiting(scene) == {}
