"""A status that another hand deletes, corrupts or changes is written anew by its owner in a minute (R25)."""

from __future__ import annotations

import pytest

from farmd.daemonset.commands import DAEMON_SET
from farmd.nodes import commands as node_commands
from farmd.work.kind import SWEEP_SECONDS
from store import codec
from store.status import Status
from tests.people import hello
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

HARMS = {
    "deleted": None,
    "corrupt": b"\xffnot json",
    "changed": codec.encode(Status(state="blocked", desired=7)),
}


def restored(scene: Scene, key: str, harm: str) -> None:
    before = scene.read(key)
    assert before is not None
    value = HARMS[harm]
    scene.delete(key) if value is None else scene.put(key, value)
    scene.advance(SWEEP_SECONDS + 5.0)
    after = scene.read(key)
    assert after is not None
    assert after.value == before.value or "since" in after.value.decode()
    assert codec.decode(dict, after.value, key) | {"since": 0} == codec.decode(dict, before.value, key) | {
        "since": 0
    }


@pytest.mark.parametrize("harm", HARMS)
def test_r25_the_status_of_an_idle_controller(scene: Scene, harm: str) -> None:
    scene.nodes(2)
    rc = scene.rc(replicas=2)
    scene.farm()
    scene.advance(10.0)
    assert scene.status(rc).state == "converged"
    restored(scene, KEYS.status("rcs", rc), harm)
    scene.check()


@pytest.mark.parametrize("harm", HARMS)
def test_r25_the_status_of_an_idle_daemon_set(scene: Scene, harm: str) -> None:
    scene.nodes(2)
    fields = {name: value for name, value in hello().items() if name != "replicas"}
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, DAEMON_SET.file.parse(fields, "test")))
    assert made is not None
    scene.change(KEYS.record("daemonsets", made.change.id), **{"x-team": "a"})
    scene.farm()
    scene.advance(10.0)
    restored(scene, KEYS.status("daemonsets", made.change.id), harm)
    scene.check()


@pytest.mark.parametrize("harm", ["deleted", "corrupt"])
def test_r25_the_status_of_a_node_whose_drain_waits(scene: Scene, harm: str) -> None:
    scene.nodes(1)
    scene.rc(replicas=1)
    scene.farm()
    scene.advance(10.0)
    assert scene.ask(lambda: node_commands.drain(scene.call, "n0", 86400.0))
    scene.advance(10.0)
    restored(scene, KEYS.status("nodes", "n0"), harm)
